"""How a server ends, whatever it serves: within three seconds where nothing runs, after its streams where some do."""

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import httpx2
import pytest

from pagefleet_contract.names import PATH_LIVE, PATH_READY
from tests import sse
from tests.runtime.live_server import LiveServer, live_server
from tests.runtime.tiny_models import tiny_llama_directory

# What an operator may count on: half the grace that a namespace gives on deletion.
ENDS_WITHIN_SECONDS = 3
SIMULATED = "simulated://smollm2-135m"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama_directory(folder, max_position_embeddings=8192)
    return str(folder)


@pytest.fixture(params=["real", "simulated"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("tiny")) if request.param == "real" else SIMULATED


def seconds_to_end(server: LiveServer) -> float:
    began = time.monotonic()
    assert server.end(signal.SIGTERM) == 0
    return time.monotonic() - began


def test_an_idle_server_ends_within_three_seconds(model: str) -> None:
    with live_server(model, "--kv-cache-budget-blocks", "64") as server, httpx2.Client(timeout=60) as http:
        http.get(server.url + PATH_LIVE)  # and its connection stays open
        assert seconds_to_end(server) < ENDS_WITHIN_SECONDS


def test_a_loading_server_ends_within_three_seconds(model: str) -> None:
    load = ("--simulation-load-seconds", "3600") if model == SIMULATED else ()
    with live_server(model, "--kv-cache-budget-blocks", "64", *load, ready=False) as server:
        with nullcontext() if model == SIMULATED else server.frozen_engine():
            assert server.status(PATH_READY) == 503
        assert seconds_to_end(server) < ENDS_WITHIN_SECONDS


@pytest.mark.parametrize("milliseconds", [0, 100, 300, 600, 1000])
def test_a_signal_at_any_moment_of_the_start_is_heard(milliseconds: int) -> None:
    command = [sys.executable, "-P", "-m", "pagefleet_runtime", SIMULATED, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        wait_for_exec(process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(milliseconds / 1000)
        process.terminate()
        assert process.wait(ENDS_WITHIN_SECONDS) in (0, -signal.SIGTERM)


def wait_for_exec(pid: int) -> None:
    limit = time.monotonic() + 10
    while b"pagefleet_runtime" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < limit


def test_streams_that_outlast_the_drain_end_with_an_error_event(model: str) -> None:
    flags = ("--serving-drain-timeout-seconds", "1", "--served-name", "m", "--kv-cache-budget-memory", "256Mi")
    body = {"model": "m", "prompt": "Hello", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with live_server(model, *flags) as server, httpx2.Client(timeout=60) as http:
        with http.stream("POST", f"{server.api}/completions", json=body) as stream:
            events = sse.events(stream.iter_text())
            next(events)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            *_, last = events
        assert "shutting down" in json.loads(last)["error"]["message"]
        assert server.process.wait(10) == 0
        assert 1 <= time.monotonic() - began < 1 + ENDS_WITHIN_SECONDS


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["simulated://no-such-model"], "no model of that name can be simulated"),
        ([SIMULATED, "--simulation-accelerator", "abacus"], "simulation.accelerator is 'abacus'"),
        (["simulated://llama-3.1-70b", "--simulation-accelerator", "l4"], "nothing is left for KV blocks"),
        (["/nothing-here"], "/nothing-here doesn't exist"),
        ([SIMULATED, "--scheduling-max-queue", "0"], "scheduling.maxQueue is 0"),
        ([SIMULATED, "--serving-api-keys-file", "/nothing-here"], "can't be read"),
        ([SIMULATED, "--host", "198.51.100.7"], "--host"),
    ],
)
def test_the_last_line_of_a_failed_start_says_why(arguments: list[str], reason: str) -> None:
    command = [sys.executable, "-P", "-m", "pagefleet_runtime", "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode in (1, 2) and last.startswith("pagefleet serve: ") and reason in last
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("uri", "told"),
    [("Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"), ("package://no-such-model-anywhere", "--build-arg MODELS=no-such")],
)
def test_a_model_that_plainly_is_not_here_is_refused_before_the_server_listens(uri: str, told: str) -> None:
    command = [sys.executable, "-P", "-m", "pagefleet_runtime", uri, "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1 and told in line
