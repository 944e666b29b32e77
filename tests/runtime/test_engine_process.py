"""Two processes, one fate: what the server does when its engine stalls, dies or never comes up. Real processes."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_contract.names import PATH_LIVE, PATH_METRICS, PATH_POLICY, PATH_READY, PATH_STATE
from tests import sse
from tests.runtime.live_server import LiveServer, live_server
from tests.runtime.tiny_models import tiny_llama_directory

OPERATOR = {"authorization": "Bearer boss"}
FEW_BLOCKS = ("--kv-cache-budget-blocks", "64", "--served-name", "tiny")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama_directory(folder, max_position_embeddings=8192)
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[LiveServer]:
    """A server that is quick to call a stall, for tests that leave it as it was."""
    key = model / "operator.key"
    key.write_text("boss\n", "utf-8")
    flags = ("--serving-stall-limit-seconds", "3", "--serving-operator-key-file", str(key))
    with live_server(model, *FEW_BLOCKS, *flags) as running:
        yield running


def complete(server: LiveServer, max_tokens: int = 8) -> httpx2.Response:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True}
    return httpx2.post(f"{server.api}/completions", json=body, timeout=60)


def figure(server: LiveServer, name: str) -> float:
    page = httpx2.get(server.url + PATH_METRICS, timeout=5).text
    families = text_string_to_metric_families(page)
    (found,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return float(found)


def test_a08_a_frozen_engine_loses_readiness_then_liveness_and_everything_completes_after_it(
    server: LiveServer,
) -> None:
    seen: list[str] = []
    with ThreadPoolExecutor(5) as pool:
        assert (server.status(PATH_READY), server.status(PATH_LIVE)) == (200, 200)
        server.engine.suspend()
        try:
            answers = [pool.submit(complete, server) for _ in range(5)]
            server.wait_until(lambda: server.status(PATH_READY) == 503)
            seen.append("not ready")
            if server.status(PATH_LIVE) == 200:
                seen.append("alive")
            server.wait_until(lambda: server.status(PATH_LIVE) == 503)
            seen.append("dead")
            assert figure(server, "pagefleet_stalled_seconds") >= 3
            assert figure(server, "pagefleet_last_step_age_seconds") >= 3
        finally:
            server.engine.resume()
        assert [answer.result().status_code for answer in answers] == [200] * 5
    assert seen == ["not ready", "alive", "dead"]
    server.wait_ready()
    server.wait_until(lambda: figure(server, "pagefleet_sequences_running") == 0)
    assert figure(server, "pagefleet_requests_waiting") == figure(server, "pagefleet_requests_in_flight") == 0


def test_idle_costs_next_to_nothing_and_is_no_stall(server: LiveServer) -> None:
    complete(server)
    processes = [psutil.Process(server.process.pid), server.engine]
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(4)  # nobody asks for anything, for longer than the stall limit
    spent = sum(sum(process.cpu_times()[:2]) for process in processes) - before
    assert (server.status(PATH_READY), server.status(PATH_LIVE)) == (200, 200)
    assert spent < 0.5


def test_a_policy_changes_live(server: LiveServer) -> None:
    def change(kv_blocks: int) -> httpx2.Response:
        return httpx2.patch(server.url + PATH_POLICY, headers=OPERATOR, json={"kvBlocks": kv_blocks}, timeout=30)

    assert change(32).json()["kvBlocks"] == 32
    try:
        assert complete(server).status_code == 200
        server.wait_until(lambda: figure(server, "pagefleet_kv_block_budget") == 32)
        state = httpx2.get(server.url + PATH_STATE, headers=OPERATOR, timeout=5).json()
        assert (state["policy"]["kvBlocks"], state["snapshot"]["blocksTotal"]) == (32, 32)
        assert change(65).status_code == 400
    finally:
        assert change(64).json()["kvBlocks"] == 64


def test_hundreds_may_connect_at_the_same_moment(server: LiveServer) -> None:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connections = [socket.create_connection((host, int(port)), timeout=30) for _ in range(400)]
    try:
        for connection in connections:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert {connection.recv(15) for connection in connections} == {b"HTTP/1.1 200 OK"}
    finally:
        for connection in connections:
            connection.close()


def test_a_killed_engine_ends_the_streams_with_an_error_and_the_process_with_one(model: Path) -> None:
    # Its answer takes seconds, so that the engine is killed long before its end.
    with live_server(model, "--kv-cache-budget-memory", "64Mi", "--served-name", "tiny") as server:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{server.api}/completions", json=body, timeout=60) as stream:
            events = sse.events(stream.iter_text())
            next(events)
            server.engine.kill()
            *_, last = events
        assert "SIGKILL" in json.loads(last)["error"]["message"]
        assert server.process.wait(30) == 1
        assert "killed by SIGKILL" in server.log.splitlines()[-1]


def test_the_engine_dies_with_its_server(model: Path) -> None:
    with live_server(model, *FEW_BLOCKS, ready=False) as server:
        engine = server.engine
        server.process.kill()
        assert engine.wait(30) is None or not engine.is_running()


def test_a_signal_while_loading_ends_it_at_once(model: Path) -> None:
    with live_server(model, *FEW_BLOCKS, ready=False) as server:
        engine = server.engine
        with server.frozen_engine():
            assert server.status(PATH_LIVE) == 200
            assert server.status(PATH_READY) == 503
            assert complete(server).json()["error"]["code"] == "model_loading"
        assert server.end(signal.SIGTERM) == 0
        assert not engine.is_running()


def test_a_model_that_is_refused_ends_the_process_with_one_line(tmp_path: Path) -> None:
    # Only the engine reads what the files hold.
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}', "utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with live_server(tmp_path, *FEW_BLOCKS, ready=False) as server:
        assert server.process.wait(60) == 1
        last = server.log.splitlines()[-1]
        assert last.startswith("pagefleet serve: ") and "no-such-type" in last


def test_a_port_in_use_is_said_before_anything_is_loaded(model: Path) -> None:
    with live_server(model, *FEW_BLOCKS, ready=False) as server:
        port = server.url.rpartition(":")[2]
        with pytest.raises(AssertionError, match=f"port {port} of 127.0.0.1 is in use"):
            with live_server(model, "--port", port):
                pass
