"""SIGTERM on a real server: what runs is finished, what comes is refused, then it ends."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pagefleet_contract.names import PATH_LIVE, PATH_READY
from tests import sse
from tests.runtime.live_server import LiveServer, live_server
from tests.runtime.tiny_models import tiny_llama_directory

FLAGS = ("--kv-cache-budget-memory", "64Mi", "--served-name", "tiny")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama_directory(folder, max_position_embeddings=8192)
    return folder


def stream_of(server: LiveServer, http: httpx2.Client, max_tokens: int) -> Any:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    return http.stream("POST", f"{server.api}/completions", json=body)


def test_streams_finish_after_sigterm_and_new_requests_are_refused(model: Path) -> None:
    with live_server(model, *FLAGS) as server, httpx2.Client(timeout=60) as http:
        with stream_of(server, http, 1500) as stream:
            incoming = sse.events(stream.iter_text())
            next(incoming)
            with server.frozen_engine():
                server.process.send_signal(signal.SIGTERM)
                server.wait_until(lambda: server.status(PATH_READY) == 503)
                assert server.status(PATH_LIVE) == 200
                refused = http.post(f"{server.api}/completions", json={"model": "tiny", "prompt": "Hi"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                assert int(refused.headers["retry-after"]) > 0
            chunks = list(incoming)
        assert chunks[-1] == "[DONE]"
        reasons = [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
        assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
        assert server.process.wait(10) == 0


def test_a_second_signal_ends_what_runs_with_an_error_event(model: Path) -> None:
    with live_server(model, *FLAGS) as server, httpx2.Client(timeout=60) as http:
        with stream_of(server, http, 8000) as stream:
            incoming = sse.events(stream.iter_text())
            next(incoming)
            with server.frozen_engine():
                server.process.send_signal(signal.SIGTERM)
                server.wait_until(lambda: server.status(PATH_READY) == 503)
                server.process.send_signal(signal.SIGTERM)
            *_, last = incoming
        assert "told to stop at once" in last
        assert server.process.wait(10) == 0
