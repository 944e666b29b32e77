"""What people send who mean no good: it reaches no path but the API's, and keeps nobody from being served."""

import asyncio
import re
import resource

import pytest

from tests.router.door import Door, door, until
from tests.router.scripted_replica import Asked, scripted_replica

pytestmark = pytest.mark.anyio

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    "target",
    [
        "/pagefleet/v1/state",
        "//pagefleet/v1/state",
        "/v1/../pagefleet/v1/state",
        "/v1/%2e%2e/pagefleet/v1/state",
        "/v1/%2E./pagefleet/v1/policy",
        "/v1/..%2fpagefleet/v1/state",
        "/v1/x/../../pagefleet/v1/drain",
        "/v1//pagefleet/v1/state",
        "/v1/./models",
        "/v1/",
        "/v1",
        "/v1/..\\pagefleet",
        "/v1/..%5cpagefleet",
        "/V1/models",
        "/%70agefleet/v1/state",
        "/v1/models%00",
        "/v1/models%0d%0ax:1",
        "/v1/%ff",
        "/tokenize/",
        "/tokenize/../pagefleet/v1/state",
        "/metrics/../pagefleet/v1/state",
        "/",
        "/docs",
        "/openapi.json/",
        "/openapi.json/../pagefleet/v1/state",
        "http://127.0.0.1/pagefleet/v1/state",
        "http://127.0.0.1//pagefleet/v1/state",
        "/health/live/",
    ],
)
async def test_only_paths_of_the_api_reach_a_replica(target: str) -> None:
    async with scripted_replica() as replica, door(replica) as d:
        for method in ("GET", "POST"):
            answer = await d.exchange(f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            assert re.match(rb"HTTP/1.1 (404|400) ", answer), answer
            assert b'"error":{' in answer
        assert not replica.requests


async def test_an_absolute_target_is_taken_by_its_path_and_no_other_host_is_reached() -> None:
    async with scripted_replica() as replica, door(replica) as d:
        await d.exchange(b"GET http://evil.example/v1/models?a HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n")
        (asked,) = replica.requests
        assert asked.line == "GET /v1/models?a HTTP/1.1"
        assert asked.header("host") == f"127.0.0.1:{replica.port}"


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n"], ids=["none", "two"])
async def test_a_request_without_one_host_is_refused(hosts: bytes) -> None:
    async with scripted_replica() as replica, door(replica) as d:
        answer = await d.exchange(b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n" + hosts + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"invalid_host"' in answer
        assert not replica.requests


INNER = b"GET /pagefleet/v1/state HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: %d\r\n\r\n" % len(INNER) + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: +0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0, 5\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\nfoo: bar\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\nhost: x\ncontent-length: 0\n\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + INNER,
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n" + INNER,
        b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nhost: x\r\n\r\n" + INNER,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INNER,
        b"GET /v1/x HTTP/1.1\r\nhost: x\r\nbad\x00name: 1\r\n\r\n" + INNER,
        b"GET /v1/x\r\n\r\n" + INNER,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + INNER,
    ],
)
async def test_no_request_is_hidden_in_another(request_bytes: bytes) -> None:
    async with scripted_replica() as replica, door(replica) as d:
        raw = await d.raw(request_bytes + GET)
        answer = await raw.rest()
        await raw.leave()
        # The inner request is either seen by the router, which refuses it, or never read: the replica has one of ours.
        for asked in replica.requests:
            assert "pagefleet" not in asked.line and b"pagefleet" not in asked.body, asked.line
        assert answer.startswith(b"HTTP/1.1 ") or answer == b""


async def test_an_upgrade_is_not_made_and_its_body_is_not_lost() -> None:
    """Java's HTTP client offers h2c with each request that has a body."""
    body = b'{"model":"tiny"}'
    async with scripted_replica() as replica, door(replica) as d:
        answer = await d.exchange(
            b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings, close\r\ncontent-length: %d\r\n"
            b"host: x\r\nHTTP2-Settings: AAE\r\nUpgrade: h2c\r\n\r\n%s" % (len(body), body)
        )
        assert answer.startswith(b"HTTP/1.1 200 ")
        (asked,) = replica.requests
        assert asked.body == body
        assert {name for name, _ in asked.headers}.isdisjoint({"upgrade", "http2-settings", "connection"})


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 40_000 + b"\r\n",
        b"GET /v1/" + b"a" * 200_000,
        b"GET /v1/models HTTP/1.1\r\nx" + b"y" * 200_000,
    ],
    ids=["value", "many", "path", "name"],
)
async def test_a_head_without_end_is_431_and_not_kept(head: bytes) -> None:
    async with scripted_replica() as replica, door(replica) as d:
        raw = await d.raw(b"")
        for start in range(0, len(head), 16384):
            raw.writer.write(head[start : start + 16384])
            await asyncio.sleep(0)
        answer = await raw.rest()
        await raw.leave()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
        assert not replica.requests
        await until(lambda: d.proxy.num_open == 0)


async def test_a_large_body_that_comes_at_once_with_its_head_is_no_large_head() -> None:
    async with scripted_replica() as replica, door(replica) as d:
        raw = await d.raw(b"")
        for _ in range(3):
            body = b"x" * 200_000
            raw.writer.write(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            assert (await raw.until(b"hello")).startswith(b"HTTP/1.1 200 ")
        await raw.leave()


@pytest.mark.parametrize("filler", [b"x-t: " + b"a" * 1000, b"x" * 1000 + b": y"])
async def test_what_follows_a_chunked_body_is_bounded(filler: bytes) -> None:
    async with scripted_replica() as replica, door(replica) as d:
        raw = await d.raw(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
        with_end = filler if b": a" in filler else filler + b"\r\n"
        try:
            for _ in range(400):
                raw.writer.write(with_end)
                await raw.writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        assert await raw.rest() == b""
        await raw.leave()
        assert not replica.requests


async def test_two_thousand_idle_connections_keep_nobody_from_being_served() -> None:
    _allow_files(5000)
    async with scripted_replica() as replica, door(replica, max_connections=4000) as d:
        idle = [await d.raw(b"GET /v1/mod" if number % 2 else b"") for number in range(2000)]
        async with asyncio.timeout(20):
            assert (await d.http.get("/v1/models")).status_code == 200
            assert (await d.http.get("/health/live")).status_code == 200
        for raw in idle:
            raw.writer.transport.abort()


async def test_connections_beyond_the_limit_are_refused_in_words_and_probes_get_through() -> None:
    async with scripted_replica() as replica, door(replica, max_connections=16) as d:
        idle = [await d.raw(b"") for _ in range(14)]
        await until(lambda: True)
        refused = await d.exchange(GET)
        assert refused.startswith(b"HTTP/1.1 503 ") and b'"code":"too_many_connections"' in refused
        assert b"retry-after: 1" in refused
        probe = await d.exchange(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert probe.startswith(b"HTTP/1.1 200 ")
        idle += [await d.raw(b"") for _ in range(2)]
        await asyncio.sleep(0)
        assert (await d.exchange(b"")).startswith(b"HTTP/1.1 503 ")
        for raw in idle:
            await raw.leave()
        assert not replica.requests
        await _until_served(d)


async def _until_served(d: Door) -> None:
    async with asyncio.timeout(20):
        while not (await d.exchange(GET)).startswith(b"HTTP/1.1 200 "):  # noqa: ASYNC110 - each round asks anew
            await asyncio.sleep(0.01)


async def test_a_slow_body_is_ended_in_words() -> None:
    async with scripted_replica() as replica, door(replica, client_timeout_seconds=1) as d:
        answer = await d.exchange(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nslow")
        assert answer.startswith(b"HTTP/1.1 408 ") and b'"code":"slow_body"' in answer
        assert not replica.requests


@pytest.mark.parametrize("said", [b"", b"GET /v1/models HTTP/1.1\r\nhost"], ids=["nothing", "half a head"])
async def test_a_connection_that_says_nothing_whole_is_closed(said: bytes) -> None:
    async with door(client_timeout_seconds=1) as d:
        answer = await d.exchange(said)
        assert answer.startswith(b"HTTP/1.1 408 ") if said else answer == b""


async def test_a_replica_that_answers_an_endless_head_is_given_up() -> None:
    async def endless(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await asked.send(b"a: " + b"x" * 8000 + b"\r\n")

    async with scripted_replica(endless) as replica, door(replica) as d:
        assert (await d.http.get("/v1/models")).status_code == 502


def _allow_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))
