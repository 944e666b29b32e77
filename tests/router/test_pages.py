"""The router's own pages, keys at the door, and the bounds on bodies."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pagefleet_contract.metrics import ROUTER_METRICS
from pagefleet_router.fleet import Fleet
from tests.router.door import door, replica_at, until
from tests.router.scripted_replica import Asked, refuse, scripted_replica

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_router_is_alive_at_once_and_ready_when_the_pods_have_been_read() -> None:
    async with door() as d:
        d.proxy.begin_drain()
        answer = await d.http.get("/health/ready")
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert "draining" in answer.json()["reason"]
        assert (await d.http.get("/health/live")).status_code == 200


def test_nothing_is_known_before_the_api_was_heard() -> None:
    fleet = Fleet(lambda: 7.0)
    assert not fleet.known and fleet.watch_age_seconds is None
    fleet.hear()
    assert fleet.known and fleet.watch_age_seconds == 0.0


async def test_every_metric_of_the_table_is_shown_and_nothing_else() -> None:
    async with scripted_replica() as replica, door(replica, replica_at("127.0.0.9", "draining")) as d:
        await d.http.get("/v1/models")
        await d.http.get("/nowhere")
        page = (await d.http.get("/metrics")).text
        families = {family.name: family for family in text_string_to_metric_families(page)}
        assert set(families) == {metric.name.removesuffix("_total") for metric in ROUTER_METRICS}
        for metric in ROUTER_METRICS:
            family = families[metric.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert labels == set(metric.labels)
        assert d.figure("requests_total", "200") == 1 and d.figure("requests_total", "404") == 1
        assert d.figure("replicas", "ready") == 1 and d.figure("replicas", "draining") == 1
        assert d.figure("watch_age_seconds") >= 0


async def test_the_time_to_the_first_byte_is_that_of_the_body() -> None:
    go = asyncio.Event()

    async def slow(asked: Asked) -> None:
        await asked.begin_stream()
        await go.wait()
        await asked.event(b"data: 1\n\n")
        await asked.end_stream()

    async with scripted_replica(slow) as replica, door(replica) as d:
        sent = asyncio.ensure_future(d.http.get("/v1/models"))
        await until(lambda: len(replica.requests) == 1)
        assert _first_bytes(d.figures.first_byte_family().samples) == 0
        go.set()
        await sent
        assert _first_bytes(d.figures.first_byte_family().samples) == 1


def _first_bytes(samples: list[Sample]) -> float:
    (found,) = [sample.value for sample in samples if sample.name.endswith("_count")]
    return found


# --- keys


async def test_with_keys_the_router_asks_for_one_and_hands_it_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "acme").write_text("secret-1\n")
    async with scripted_replica() as replica, door(replica, keys=keys) as d:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret-1"}):
            answer = await d.http.post("/v1/completions", content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert not replica.requests
        answer = await d.http.post("/v1/completions", content=b"{}", headers={"authorization": "Bearer secret-1"})
        assert answer.status_code == 200
        assert replica.requests[0].header("authorization") == "Bearer secret-1"
        for page in ("/health/live", "/health/ready", "/metrics"):
            assert (await d.http.get(page)).status_code == 200


async def test_two_authorization_headers_do_not_smuggle_a_key_past_the_router(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("good\n")
    async with scripted_replica() as replica, door(replica, keys=keys) as d:
        for first, second in ((b"good", b"bad"), (b"bad", b"good")):
            await d.exchange(
                b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                b"authorization: Bearer %s\r\nauthorization: Bearer %s\r\n\r\n" % (first, second)
            )
        assert not replica.requests


# --- bodies


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_beyond_the_limit_is_413_and_reaches_nobody(announced: bool) -> None:
    async with scripted_replica() as replica, door(replica, max_body_bytes=1024) as d:
        length = b"content-length: 1025" if announced else b"transfer-encoding: chunked"
        body = b"x" * 1025 if announced else b"401\r\n" + b"x" * 1025 + b"\r\n0\r\n\r\n"
        raw = await d.raw(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + length + b"\r\n\r\n" + body)
        assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        assert b'"code":"body_too_large"' in await raw.until(b"}}")
        # The connection goes on behind the body that nobody read.
        raw.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await raw.until(b"hello")).startswith(b"HTTP/1.1 200 ")
        await raw.leave()
        assert len(replica.requests) == 1


async def test_a_body_of_the_limit_passes() -> None:
    async with scripted_replica() as replica, door(replica, max_body_bytes=1024) as d:
        assert (await d.http.post("/v1/completions", content=b"x" * 1024)).status_code == 200


async def test_all_bodies_together_are_bounded_and_given_back() -> None:
    async def never(asked: Asked) -> None:
        await asked.gone()

    async with scripted_replica(never) as replica, door(replica, max_buffered_bytes=2**20) as d:
        body = b"x" * (600 * 1024)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        first = await d.raw(head + body)
        await until(lambda: len(replica.requests) == 1)
        answer = await d.http.post("/v1/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_much_buffered")
        await first.leave()
        await until(lambda: d.proxy.num_open == 0)
        replica.script = lambda asked: refuse(asked, 400, "x")
        assert (await d.http.post("/v1/completions", content=body)).status_code == 400


async def test_a_stream_that_has_begun_holds_no_body() -> None:
    go = asyncio.Event()

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event(b"data: 1\n\n")
        await go.wait()
        await asked.end_stream()

    async with scripted_replica(stream) as replica, door(replica, max_buffered_bytes=2**20) as d:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        open_streams = [await d.raw(head + b"x" * 1_000_000)]
        await open_streams[0].until(b"data: 1")
        open_streams.append(await d.raw(head + b"x" * 1_000_000))
        await open_streams[1].until(b"data: 1")
        go.set()
        for raw in open_streams:
            await raw.leave()
