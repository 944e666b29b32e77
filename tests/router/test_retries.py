"""Another replica is asked as long as nothing was answered; what has begun ends in words, never in silence."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import openai
import pytest

from tests.router.door import Door, door, replica_at, until
from tests.router.scripted_replica import Asked, ScriptedReplica, greet, refuse, scripted_replica

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _reset(asked: Asked) -> None:
    asked.reset()


async def _half_a_head(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 OK\r\ncontent-le")
    asked.reset()


async def _nonsense(asked: Asked) -> None:
    await asked.send(b"nonsense\r\n\r\n")


def _refusing(status: int, code: str) -> Callable[[Asked], Awaitable[None]]:
    async def script(asked: Asked) -> None:
        await refuse(asked, status, code)

    return script


async def _post(d: Door) -> tuple[int, str | None]:
    answer = await d.http.post("/v1/chat/completions", json={"model": "tiny"})
    try:
        return answer.status_code, answer.json()["error"]["code"]
    except ValueError:
        return answer.status_code, None


def _asked(*replicas: ScriptedReplica) -> int:
    return sum(len(replica.requests) for replica in replicas)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_reset, "reset"),
        (_half_a_head, "reset"),
        (_nonsense, "reset"),
        (_refusing(503, "draining"), "draining"),
        (_refusing(503, "model_loading"), "model_loading"),
        (_refusing(503, "engine_failed"), "engine_failed"),
        (_refusing(503, "too_many_connections"), "too_many_connections"),
        (_refusing(429, "queue_full"), "queue_full"),
    ],
)
async def test_a_request_that_one_replica_does_not_take_is_answered_by_another(
    script: Callable[[Asked], Awaitable[None]], reason: str
) -> None:
    async with (
        scripted_replica(script) as bad,
        scripted_replica(address="127.0.0.2", port=bad.port) as good,
        door(bad, good) as d,
    ):
        for _ in range(8):
            assert await _post(d) == (200, None)
        # Unless it is only busy it is avoided for a while after that.
        assert d.figure("retries_total", reason) == len(bad.requests) >= 1
        assert len(bad.requests) == 1 or reason in ("queue_full", "too_many_connections")
        assert [asked.body for asked in good.requests] == [b'{"model":"tiny"}'] * 8
        assert bad.requests[0].header("x-request-id") in [asked.header("x-request-id") for asked in good.requests]


async def test_a_replica_that_cannot_be_reached_is_passed_over() -> None:
    async with scripted_replica() as good, door(replica_at("127.0.0.99"), good) as d:
        for _ in range(8):
            assert await _post(d) == (200, None)
        assert d.figure("retries_total", "connect") == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_value"), (404, "model_not_found"), (500, "generation_failed"), (503, "queue_timeout"), (429, "x")],
)
async def test_what_another_replica_would_answer_too_is_passed_on(status: int, code: str) -> None:
    async with (
        scripted_replica(_refusing(status, code)) as first,
        scripted_replica(_refusing(status, code), "127.0.0.2", first.port) as second,
        door(first, second) as d,
    ):
        assert await _post(d) == (status, code)
        assert _asked(first, second) == 1


@pytest.mark.parametrize(
    ("script", "retries", "asked", "answer"),
    [
        (_refusing(503, "draining"), 2, 3, (503, "draining")),
        (_refusing(503, "draining"), 0, 1, (503, "draining")),
        (_refusing(503, "draining"), 9, 4, (503, "draining")),
        (_refusing(429, "queue_full"), 9, 2, (429, "queue_full")),
        (_reset, 9, 2, (502, "replica_lost")),
        (_refusing(503, "engine_failed"), 9, 2, (503, "engine_failed")),
    ],
)
async def test_tries_are_bounded_and_the_last_answer_is_the_answer(
    script: Callable[[Asked], Awaitable[None]], retries: int, asked: int, answer: tuple[int, str]
) -> None:
    async with (
        scripted_replica(script) as a,
        scripted_replica(script, "127.0.0.2", a.port) as b,
        scripted_replica(script, "127.0.0.3", a.port) as c,
        scripted_replica(script, "127.0.0.4", a.port) as e,
        door(a, b, c, e, max_retries=retries) as d,
    ):
        assert await _post(d) == answer
        assert _asked(a, b, c, e) == asked
        assert sum(d.figures.retries.values()) == asked - 1


async def test_nobody_to_be_reached_is_503_with_retry_after() -> None:
    async with scripted_replica() as replica, door(replica_at("127.0.0.98"), port=replica.port) as d:
        answer = await d.http.post("/v1/completions", content=b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_unreachable")
        assert answer.headers["retry-after"] == "1"


# --- after the first byte


def _stream_then(end: Callable[[Asked], None], *pieces: bytes) -> Callable[[Asked], Awaitable[None]]:
    async def script(asked: Asked) -> None:
        await asked.begin_stream()
        for piece in pieces:
            await asked.event(piece)
        end(asked)

    return script


def _close(asked: Asked) -> None:
    asked.writer.close()


CHUNK = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[]}\n\n'


@pytest.mark.parametrize("end", [Asked.reset, _close], ids=["reset", "closed"])
@pytest.mark.parametrize("pieces", [(CHUNK,), (CHUNK, b'data: {"id":"1","ob')], ids=["after", "within"])
async def test_a_stream_whose_replica_is_lost_ends_with_an_error_event(
    end: Callable[[Asked], None], pieces: tuple[bytes, ...]
) -> None:
    async with (
        scripted_replica(_stream_then(end, *pieces)) as bad,
        scripted_replica(_stream_then(end, *pieces), "127.0.0.2", bad.port) as other,
        door(bad, other) as d,
    ):
        answer = await d.http.post("/v1/chat/completions", content=b"{}")
        assert answer.status_code == 200
        first, last, rest = answer.content.split(b"\n\n")
        assert (first + b"\n\n", rest) == (CHUNK, b"")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "replica_lost")
        assert "chat-127.0.0." in error["message"]
        assert _asked(bad, other) == 1
        assert d.figure("lost_answers_total") == 1


async def test_the_openai_client_raises_where_a_stream_is_lost() -> None:
    async with scripted_replica(_stream_then(Asked.reset, CHUNK, CHUNK)) as bad, door(bad) as d:
        async with openai.AsyncOpenAI(base_url=d.api, api_key="x", max_retries=0) as client:
            stream = await client.chat.completions.create(model="tiny", messages=[], stream=True)
            seen = []
            with pytest.raises(openai.APIError, match="is gone"):
                async for chunk in stream:
                    seen.append(chunk.id)
            assert seen == ["1", "1"]


async def test_a_responses_stream_that_is_lost_ends_with_its_own_error_event() -> None:
    events = b'event: response.created\ndata: {"type":"response.created","sequence_number":6}\n\n'
    async with scripted_replica(_stream_then(Asked.reset, events)) as bad, door(bad) as d:
        answer = await d.http.post("/v1/responses", content=b"{}")
        first, last, _ = answer.content.split(b"\n\n")
        assert first + b"\n\n" == events
        name, data = last.split(b"\n")
        assert name == b"event: error"
        error = json.loads(data.removeprefix(b"data: "))
        assert (error["type"], error["code"], error["sequence_number"]) == ("error", "replica_lost", 7)


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/completions", b"data: [DONE]\n\n"),
        ("/v1/responses", b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
    ],
)
async def test_a_stream_that_had_said_all_ends_well_even_if_its_connection_does_not(path: str, last: bytes) -> None:
    async with scripted_replica(_stream_then(Asked.reset, CHUNK, last)) as replica, door(replica) as d:
        assert (await d.http.post(path, content=b"{}")).content == CHUNK + last


async def test_an_answer_that_breaks_is_502() -> None:
    async def half(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        asked.reset()

    async with scripted_replica(half) as a, scripted_replica(half, "127.0.0.2", a.port) as b, door(a, b) as d:
        assert await _post(d) == (502, "replica_lost")
        assert _asked(a, b) == 1


async def test_a_long_answer_that_breaks_is_cut_off_so_that_it_cannot_be_taken_for_whole() -> None:
    async def half(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 3_000_000)
        asked.reset()

    async with scripted_replica(half) as replica, door(replica) as d:
        answer = await d.exchange(b"GET /v1/x HTTP/1.1\r\nhost: x\r\n\r\n")
        assert len(answer) < 4_000_000
        await until(lambda: d.figure("lost_answers_total") == 1)


# --- who gets a request


async def test_requests_go_to_the_replica_with_the_least_in_flight() -> None:
    go = asyncio.Event()

    async def wait(asked: Asked) -> None:
        await go.wait()
        await greet(asked)

    async with (
        scripted_replica(wait) as a,
        scripted_replica(wait, "127.0.0.2", a.port) as b,
        scripted_replica(wait, "127.0.0.3", a.port) as c,
        door(a, b, c) as d,
    ):
        sent = [asyncio.ensure_future(d.http.get("/v1/models")) for _ in range(30)]
        await until(lambda: _asked(a, b, c) == 30)
        assert [len(replica.requests) for replica in (a, b, c)] == [10, 10, 10]
        assert d.figure("requests_in_flight") == 30
        go.set()
        await asyncio.gather(*sent)


@pytest.mark.parametrize("state", ["draining", "unready"])
async def test_b16_a_marked_replica_gets_no_new_request_and_its_streams_go_on(state: str) -> None:
    go = asyncio.Event()

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event(CHUNK)
        await go.wait()
        await asked.event(b"data: [DONE]\n\n")
        await asked.end_stream()

    async with (
        scripted_replica(stream) as old,
        scripted_replica(address="127.0.0.2", port=old.port) as new,
        door(old, replica_at(new.address, "unready")) as d,
    ):
        streams = [asyncio.ensure_future(d.http.post("/v1/completions", content=b"{}")) for _ in range(20)]
        await until(lambda: len(old.requests) == 20)
        d.fleet.see((replica_at(old.address, state), replica_at(new.address)))  # type: ignore[arg-type]
        for _ in range(50):
            assert (await d.http.get("/v1/models")).status_code == 200
        assert (len(old.requests), len(new.requests)) == (20, 50)
        # Even when its pod is gone from the list, what runs on it goes on.
        d.fleet.see((replica_at(new.address),))
        go.set()
        answers = await asyncio.gather(*streams)
        assert {answer.content for answer in answers} == {CHUNK + b"data: [DONE]\n\n"}
