"""The proxy's own client: a request whose caller is gone leaves no connection behind, whatever the API server does."""

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp.test_utils import make_mocked_request

from pagefleet_local import pki
from tests.e2e.api_server import ApiServer

_SECONDS = 10
_BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx"


class _Server:
    """Takes one request and begins to answer; waits at one stage until the caller has left, and then hears no more."""

    def __init__(self, folder: Path, waits_at: str) -> None:
        self._authority = pki.authority(folder, "ca")
        self._caller = self._authority.client("client", "somebody")
        serving = self._authority.server("server", "server", ["127.0.0.1"])
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(serving.certificate, serving.key)
        self._waits_at = waits_at
        self.reached, self.left, self._ended = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Yield the address."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._serve, args=(listener,))
            thread.start()
            try:
                yield f"https://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                self._ended.set()
                thread.join(_SECONDS)

    def kubeconfig(self, folder: Path, url: str) -> Path:
        cluster = {"server": url, "certificate-authority": str(self._authority.certificate)}
        user = {"client-certificate": str(self._caller.certificate), "client-key": str(self._caller.key)}
        content = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": user}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(content))
        return file

    def _serve(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        self._pass("handshake")
        # A client may break off at any time.
        with contextlib.suppress(OSError), self._context.wrap_socket(accepted, server_side=True) as connection:
            connection.recv(2**16)
            self._pass("headers")
            connection.sendall(_BEGUN)
            self._ended.wait(_SECONDS)

    def _pass(self, stage: str) -> None:
        if stage == self._waits_at:
            self.reached.set()
            self.left.wait(_SECONDS)


async def _ask_and_leave(server: _Server, kubeconfig: Path) -> None:
    async def ask() -> None:
        async with api.send(make_mocked_request("GET", "/"), b"") as answer:
            server.reached.set()
            await answer.read()

    async with ApiServer(kubeconfig) as api:
        asking = asyncio.ensure_future(ask())
        assert await asyncio.to_thread(server.reached.wait, _SECONDS)
        asking.cancel()
        await asyncio.wait((asking,))
        server.left.set()


@pytest.mark.parametrize("stage", ["handshake", "headers", "body"])
def test_a_caller_that_leaves_leaves_nothing_open(tmp_path: Path, stage: str) -> None:
    server = _Server(tmp_path, stage)
    with server.serving() as url:
        asyncio.run(_ask_and_leave(server, server.kubeconfig(tmp_path, url)))
        gc.collect()  # a connection that was left open says so now, and fails the test
