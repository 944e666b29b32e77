"""An API server that goes down in the middle of an answer, and a server that is none: said, never a traceback."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagefleet_cli.cluster import Cluster
from pagefleet_cli.services import logs
from pagefleet_local.errors import FleetError


def _says(status: str, content: bytes, length: int) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode() + content


@contextmanager
def _answering(folder: Path, answer: bytes) -> Iterator[Cluster]:
    """A cluster whose server gives this answer to one request and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        file = folder / "kubeconfig"
        file.write_text(
            "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
            f" clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{listener.getsockname()[1]}'}}}}],"
            " users: [{name: u, user: {}}]}"
        )
        yield Cluster(file)
        server.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_says("200 OK", b'{"rows":', 1000), "broke off in the middle of an answer"),
        (_says("403 Forbidden", b'{"mess', 1000), "broke off in the middle of an answer"),
        (_says("200 OK", b"<html></html>", 13), "not as an API server does: <html></html>"),
        (_says("200 OK", b"[]", 2), "not as an API server does: []"),
        (_says("200 OK", b"{}", 2), "not as an API server does: {}"),
        (_says("401 Unauthorized", b"null", 4), "answered 401: null"),
    ],
    ids=["cut", "cut refusal", "page", "list", "object", "null"],
)
def test_an_answer_that_is_none_is_said_with_the_server(tmp_path: Path, answer: bytes, said: str) -> None:
    with _answering(tmp_path, answer) as cluster, pytest.raises(FleetError, match=re.escape(said)):
        cluster.table("default")


def test_a_followed_log_that_breaks_off_ends_with_what_happened(tmp_path: Path) -> None:
    pod = {"metadata": {"name": "chat-engine-1"}}
    with _answering(tmp_path, _says("200 OK", b"ready\n", 1000)) as cluster:
        with pytest.raises(FleetError, match="broke off in the middle of an answer"):
            list(logs(cluster, "default", [pod], {}, follow=True))
