"""What goes through the router: requests and answers as they are, streams as they come, and who leaves is let go."""

import asyncio

import pytest

from tests.router.door import Door, door, until
from tests.router.scripted_replica import Asked, scripted_replica

pytestmark = pytest.mark.anyio

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: chat.prod\r\ncontent-length: %d\r\n%s\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def post(body: bytes, *headers: bytes) -> bytes:
    return POST % (len(body), b"".join(header + b"\r\n" for header in headers)) + body


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH", "PUT", "OPTIONS"])
async def test_method_path_query_and_body_arrive_as_they_were_sent(method: str) -> None:
    body = bytes(range(256)) * 3
    async with scripted_replica() as replica, door(replica) as d:
        target = "/v1/models/org%2Fname%20x?after=%7B%22a%22%3A1%7D&b=+&b="
        answer = await d.http.request(method, target, content=body)
        assert (answer.status_code, answer.content) == (200, b"hello")
    (asked,) = replica.requests
    assert asked.line == f"{method} {target} HTTP/1.1"
    assert asked.body == body


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/version", "/openapi.json", "/v1/anything/else"])
async def test_paths_of_the_api_are_passed_on(path: str) -> None:
    async with scripted_replica() as replica, door(replica) as d:
        assert (await d.http.post(path, content=b"{}")).status_code == 200
    assert replica.requests[0].line == f"POST {path} HTTP/1.1"


async def test_headers_pass_but_those_of_one_connection_and_the_replica_learns_who_asks() -> None:
    request = post(
        b"{}",
        b"Authorization: Bearer k",
        b"X-Odd: caf\xc3\xa9 \xe9",
        b"Cookie: a=1",
        b"Cookie: b=2",
        b"Connection: keep-alive, X-Secret",
        b"X-Secret: s",
        b"Keep-Alive: timeout=5",
        b"TE: trailers",
        b"Proxy-Connection: keep-alive",
        b"Expect: 100-continue",
        b"X-Forwarded-For: 203.0.113.9",
        b"X-Request-Id: mine-1",
    )
    async with scripted_replica() as replica, door(replica) as d:
        raw = await d.raw(request)
        assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await raw.until(b"hello")
        await raw.leave()
        (asked,) = replica.requests
        assert asked.headers == [
            ("host", f"127.0.0.1:{replica.port}"),
            ("authorization", "Bearer k"),
            ("x-odd", "caf\xc3\xa9 \xe9"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("x-forwarded-for", "203.0.113.9, 127.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "chat.prod"),
            ("x-request-id", "mine-1"),
            ("content-length", "2"),
        ]


async def test_an_answer_passes_with_its_status_and_headers() -> None:
    async def teapot(asked: Asked) -> None:
        await asked.answer(418, b"short", "X-Ratelimit-Remaining: 3", "connection: x-hop", "x-hop: 1", "x-hop: 2")

    async with scripted_replica(teapot) as replica, door(replica) as d:
        answer = await d.http.get("/v1/models", headers={"x-request-id": "mine-2"})
    assert (answer.status_code, answer.content) == (418, b"short")
    assert dict(answer.headers) == {
        "content-type": "text/plain",
        "content-length": "5",
        "x-ratelimit-remaining": "3",
        "x-request-id": "mine-2",
    }


async def test_a_request_without_an_id_gets_one_and_the_client_learns_it() -> None:
    async with scripted_replica() as replica, door(replica) as d:
        named = await d.http.get("/v1/models")
        unsafe = await d.http.get("/v1/models", headers={"x-request-id": "a b\tc"})
    ids = [asked.header("x-request-id") for asked in replica.requests]
    assert ids == [named.headers["x-request-id"], unsafe.headers["x-request-id"]]
    assert all(found is not None and found.startswith("req-") for found in ids) and ids[0] != ids[1]


async def test_a_chunked_request_is_passed_on_with_its_length() -> None:
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5;name=value\r\nhello\r\n1\r\n!\r\n0\r\nX-Trailer: 1\r\nauthorization: Bearer other\r\n\r\n"
    )
    async with scripted_replica() as replica, door(replica) as d:
        assert b"200 OK" in await d.exchange(request)
    (asked,) = replica.requests
    assert (asked.body, asked.header("content-length")) == (b"hello!", "6")
    assert asked.header("transfer-encoding") is None
    assert asked.header("x-trailer") is None and asked.header("authorization") is None


async def test_each_event_of_a_stream_goes_on_as_it_comes() -> None:
    step = asyncio.Event()

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        for number in range(3):
            await asked.event(b"data: %d\n\n" % number)
            await step.wait()
            step.clear()
        await asked.event(b"data: [DONE]\n\n")
        await asked.end_stream()

    async with scripted_replica(stream) as replica, door(replica) as d:
        raw = await d.raw(post(b"{}"))
        assert b"content-type: text/event-stream" in await raw.until(b"\r\n\r\n")
        for number in range(3):
            # The next one isn't even written before this one has been read.
            assert (await raw.until(b"\n\n\r\n")).endswith(b"data: %d\n\n\r\n" % number)
            step.set()
        assert (await raw.until(b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await raw.leave()


async def test_an_event_that_comes_in_pieces_goes_on_whole() -> None:
    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        for piece in (b"data: a", b"bc\n", b"\ndata: d\n\nda", b"ta: e\n\n", b": rest"):
            await asked.event(piece)
            await asyncio.sleep(0)
        await asked.end_stream()

    async with scripted_replica(stream) as replica, door(replica) as d:
        answer = await d.http.post("/v1/completions", content=b"{}")
    assert answer.content == b"data: abc\n\ndata: d\n\ndata: e\n\n: rest"


async def test_a_client_that_leaves_ends_its_request_at_the_replica_before_it_has_answered_and_after() -> None:
    left = asyncio.Event()

    async def silent(asked: Asked) -> None:
        await asked.gone()
        left.set()

    async def endless(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event(b"data: 1\n\n")
        await silent(asked)

    async with scripted_replica(silent) as replica, door(replica) as d:
        for script, seen in ((silent, b""), (endless, b"data: 1\n\n")):
            left.clear()
            replica.script = script
            num_asked = len(replica.requests)
            raw = await d.raw(post(b"{}"))
            await until(lambda num=num_asked: len(replica.requests) > num)  # type: ignore[misc]
            if seen:
                await raw.until(seen)
            await raw.leave()
            async with asyncio.timeout(20):
                await left.wait()
        await until(lambda: d.proxy.num_open == 0)
        assert d.figure("requests_total", "499") == 1 and d.figure("requests_total", "200") == 1
        assert d.figure("lost_answers_total") == 0


async def test_requests_sent_at_once_on_one_connection_all_end_when_their_client_leaves() -> None:
    async def silent(asked: Asked) -> None:
        await asked.gone()

    async with scripted_replica(silent) as replica, door(replica) as d:
        raw = await d.raw(post(b"{}") * 3)
        await until(lambda: d.proxy.num_open == 1)
        await raw.leave()
        await until(lambda: d.proxy.num_open == 0)


async def test_a_client_that_stops_reading_stops_the_replica_from_writing() -> None:
    written = 0

    async def flood(asked: Asked) -> None:
        nonlocal written
        await asked.begin_stream()
        while True:
            await asked.event(b"data: " + b"x" * 65536 + b"\n\n")
            written += 65536

    async with scripted_replica(flood) as replica, door(replica) as d:
        raw = await d.raw(post(b"{}"))
        await raw.until(b"\n\n")
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        async with asyncio.timeout(20):
            while before != written:
                before = written
                await asyncio.sleep(0.3)  # nothing tells that nothing more is coming
        assert written < 64 * 2**20
        await raw.leave()
        await until(lambda: d.proxy.num_open == 0)


async def test_a_connection_to_a_replica_is_used_again_and_a_new_one_made_when_it_closes() -> None:
    async with scripted_replica() as replica, door(replica) as d:
        for _ in range(5):
            await d.http.get("/v1/models")
        assert replica.num_connections == 1
        replica.requests[-1].writer.close()
        await replica.requests[-1].writer.wait_closed()
        assert (await d.http.get("/v1/models")).status_code == 200
        assert replica.num_connections == 2


async def test_a_kept_connection_that_closes_just_when_it_is_used_costs_nothing() -> None:
    async def once(asked: Asked) -> None:
        # The second request finds a connection that ends without a word, as at an engine's idle limit.
        if len([other for other in replica.requests if other.writer is asked.writer]) > 1:
            asked.reset()
        else:
            await asked.answer(200, b"hello")

    async with scripted_replica(once) as replica, door(replica) as d:
        for _ in range(3):
            assert (await d.http.post("/v1/completions", content=b"{}")).status_code == 200
        assert d.figure("retries_total", "reset") == 0


async def test_answers_without_a_body_and_without_a_length_end_where_they_should() -> None:
    async def odd(asked: Asked) -> None:
        if asked.line.startswith("HEAD"):
            await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n")
        elif "nothing" in asked.line:
            await asked.send(b"HTTP/1.1 204 No\r\n\r\n")
        elif "hints" in asked.line:
            await asked.send(b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        else:
            await asked.send(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
            asked.writer.close()

    async with scripted_replica(odd) as replica, door(replica) as d:
        for _ in range(2):
            head = await d.http.head("/v1/models")
            assert (head.status_code, head.headers["content-length"], head.content) == (200, "1234", b"")
            assert (await d.http.get("/v1/nothing")).status_code == 204
            assert (await d.http.get("/v1/hints")).content == b"ok"
            assert (await d.http.get("/v1/until")).content == b"until the end"


async def test_a_large_answer_passes_whole() -> None:
    body = bytes(range(256)) * 20_000

    async def large(asked: Asked) -> None:
        await asked.answer(200, body)

    async with scripted_replica(large) as replica, door(replica) as d:
        assert (await d.http.post("/v1/completions", content=body[: 4 * 2**20])).content == body
        assert replica.requests[0].body == body[: 4 * 2**20]


async def test_a_replica_is_reached_by_ipv6_too() -> None:
    async with scripted_replica(address="::1") as replica, door(replica) as d:
        assert (await d.http.get("/v1/models")).status_code == 200
        assert replica.requests[0].header("host") == f"[::1]:{replica.port}"


async def _many(d: Door, number: int) -> list[int]:
    answers = await asyncio.gather(*(d.http.get("/v1/models") for _ in range(number)))
    return [answer.status_code for answer in answers]


async def test_many_at_once_are_all_answered() -> None:
    async with scripted_replica() as replica, door(replica) as d:
        assert await _many(d, 90) == [200] * 90
