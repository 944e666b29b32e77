"""The router's life as a process: how it starts, how it refuses to, and how it ends."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.router.door import until
from tests.router.router_program import RouterProgram, config_file, router_before, router_program
from tests.router.scripted_replica import Asked, scripted_replica

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    return path


@pytest.mark.parametrize("kubeconfig", [True, False])
def test_without_an_api_the_router_waits_unready_says_so_and_ends_at_once(tmp_path: Path, kubeconfig: bool) -> None:
    path = str(_kubeconfig(tmp_path, "http://127.0.0.1:9")) if kubeconfig else ""
    command = ("pagefleet_router", "--config", str(config_file(tmp_path)), "--port", "0")
    with router_program(tmp_path, *command, environment={"KUBECONFIG": path}) as router:
        router.wait_until(lambda: "not ready until the pods are read" in router.log)
        assert router.status("/health/ready") == 503 and router.status("/health/live") == 200
        answer = httpx2.post(router.url + "/v1/completions", json={"model": "tiny"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        assert _seconds_to_end(router) < 10
        assert router.process.returncode == 0


def _seconds_to_end(router: RouterProgram) -> float:
    started = time.monotonic()
    router.process.send_signal(signal.SIGTERM)
    router.process.wait(30)
    return time.monotonic() - started


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{serviceName: chat, namespace: n}", "servedName: Field required"),
        ("{serviceName: chat, namespace: n, servedName: x, enginePort: 0}", "enginePort: Input should be greater"),
        ("{serviceName: chat, namespace: n, servedName: x, loadCapPercent: 125}", "loadCapPercent: Extra inputs"),
        ("{serviceName: chat, namespace: n, servdName: x}", "not permitted; did you mean servedName?"),
        ("[]", "expected a mapping"),
    ],
)
def test_wrong_settings_are_refused_by_name(tmp_path: Path, config: str, said: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "pagefleet_router", "--config", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


async def test_streams_end_well_after_sigterm_and_nothing_new_is_taken(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event(b"data: 1\n\n")
        await go.wait()
        await asked.event(b"data: [DONE]\n\n")
        await asked.end_stream()

    async with scripted_replica(stream) as replica, httpx2.AsyncClient(timeout=30) as http:
        with router_before(tmp_path, ["127.0.0.1"], replica.port) as router:
            streams = [asyncio.ensure_future(http.post(router.url + "/v1/completions")) for _ in range(5)]
            await until(lambda: len(replica.requests) == 5)
            idle = await asyncio.open_connection("127.0.0.1", httpx2.URL(router.url).port)
            router.process.send_signal(signal.SIGTERM)
            await until(lambda: "draining: 5 requests in flight" in router.log)
            async with asyncio.timeout(30):
                assert await idle[0].read() == b""  # a connection without a request is closed
            idle[1].close()
            with pytest.raises(httpx2.ConnectError):
                await http.get(router.url + "/health/live")
            assert router.process.poll() is None
            go.set()
            assert {answer.content for answer in await asyncio.gather(*streams)} == {b"data: 1\n\ndata: [DONE]\n\n"}
            assert router.process.wait(30) == 0


async def test_b16_a_stream_beyond_the_drain_limit_ends_with_an_error_event(tmp_path: Path) -> None:
    async def stream(asked: Asked) -> None:
        if asked.line.startswith("POST"):
            await asked.begin_stream()
            await asked.event(b"data: 1\n\n")
        await asked.gone()

    async with scripted_replica(stream) as replica, httpx2.AsyncClient(timeout=30) as http:
        with router_before(tmp_path, ["127.0.0.1"], replica.port, drain_timeout_seconds=1) as router:
            begun = asyncio.ensure_future(http.post(router.url + "/v1/completions"))
            not_begun = asyncio.ensure_future(http.get(router.url + "/v1/completions"))
            await until(lambda: len(replica.requests) == 2)
            router.process.send_signal(signal.SIGTERM)
            content = (await begun).content
            assert content.startswith(b'data: 1\n\ndata: {"error":') and b'"code":"draining"' in content
            answer = await not_begun
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert router.process.wait(30) == 0


async def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    async def silent(asked: Asked) -> None:
        await asked.gone()

    async with scripted_replica(silent) as replica, httpx2.AsyncClient(timeout=30) as http:
        with router_before(tmp_path, ["127.0.0.1"], replica.port) as router:
            sent = asyncio.ensure_future(http.post(router.url + "/v1/completions"))
            await until(lambda: len(replica.requests) == 1)
            router.process.send_signal(signal.SIGINT)
            await until(lambda: "draining" in router.log)
            router.process.send_signal(signal.SIGINT)
            assert (await sent).status_code == 503
            assert router.process.wait(30) == 0
