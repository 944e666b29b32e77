"""Connections beyond what files allow are refused in words; probes get through; requests begin in turns."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from pagefleet_contract.names import PATH_LIVE
from pagefleet_runtime.server.connections import Connections, Room, Working, is_whole, path_of, room_within
from pagefleet_runtime.server.pacing import Turns, is_urgent
from tests.runtime.api import until

pytestmark = pytest.mark.anyio

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
PROBE = f"GET {PATH_LIVE} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """An app whose answers wait until they are let go; those to urgent paths don't."""

    def __init__(self, connections: Connections, port: int, go: asyncio.Event) -> None:
        self.connections = connections
        self.go = go
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def send(self, request: bytes) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        writer.write(request)
        return Client(reader, writer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> bytes:
        async with asyncio.timeout(20):
            return await self.reader.read()


@asynccontextmanager
async def site(room: Room, other_app: ASGIApp | None = None) -> AsyncIterator[Site]:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if not is_urgent(scope["path"]):
            await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config, state = uvicorn.Config(other_app or app, http="httptools", log_config=None), ServerState()
    config.load()
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        connections = Connections(
            listener, room, lambda places: Working(places, config=config, server_state=state, app_state={})
        )
        connections.start()
        found = Site(connections, listener.getsockname()[1], go)
        try:
            yield found
        finally:
            go.set()
            connections.stop()
            for connection in list(state.connections):
                connection.shutdown()
            await found.close()
            await until(lambda: connections.num_open == 0)


async def until_open(site: Site, number: int) -> None:
    await until(lambda: site.connections.num_open == number)


async def test_a_connection_too_many_is_503_with_retry_after_and_a_probe_is_answered() -> None:
    async with site(Room(4, 2)) as s:
        waiting = [await s.send(POST) for _ in range(2)]
        await until_open(s, 2)
        refused = await (await s.send(POST)).answer()
        assert refused.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1\r\n" in refused
        assert b'"code":"too_many_connections"' in refused
        assert (await (await s.send(PROBE)).answer()).startswith(b"HTTP/1.1 200 ")
        s.go.set()
        # With others at the door, none of them stays open when it is done.
        assert [(await client.answer())[:12] for client in waiting] == [b"HTTP/1.1 200"] * 2
        await until_open(s, 0)
        assert (await (await s.send(PROBE)).answer()).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_too_many_that_speaks_late_or_long_is_refused_in_words_too() -> None:
    async with site(Room(4, 1)) as s:
        await s.send(POST)
        await until_open(s, 1)
        late, long = (
            await s.send(b""),
            await s.send(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9999999\r\n\r\n{"),
        )
        await until_open(s, 3)
        late.writer.write(POST)
        long.writer.write(b" " * 100_000)
        for client in (late, long):
            assert (await client.answer()).startswith(b"HTTP/1.1 503 ")


async def test_a_probe_that_speaks_late_is_answered_though_all_places_are_taken() -> None:
    async with site(Room(4, 1)) as s:
        await s.send(POST)
        await until_open(s, 1)
        probe = await s.send(b"")
        await until_open(s, 2)
        probe.writer.write(PROBE)
        assert (await probe.answer()).startswith(b"HTTP/1.1 200 ")


async def test_what_finds_no_place_at_all_waits_and_is_served_later() -> None:
    async with site(Room(2, 2)) as s:
        first = [await s.send(POST) for _ in range(2)]
        await until_open(s, 2)
        later = await s.send(POST.replace(b"host: x", b"connection: close"))
        first[0].writer.close()
        s.go.set()
        assert (await later.answer()).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_that_stays_open_serves_again_where_there_is_room() -> None:
    async with site(Room(4, 3)) as s:
        s.go.set()
        client = await s.send(POST)
        for _ in range(2):
            async with asyncio.timeout(20):
                assert (await client.reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            client.writer.write(POST)


async def test_all_requests_of_a_connection_learn_that_their_client_has_left() -> None:
    told = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})  # to nobody, and no error
        told.set()

    async with site(Room(4, 3), app) as s:
        client = await s.send(POST * 3)
        await until_open(s, 1)
        client.writer.close()
        async with asyncio.timeout(20):
            await told.wait()


async def test_turns_come_in_order_few_at_a_time_and_skip_who_left() -> None:
    turns, begun = Turns(2), []

    async def request(number: int) -> None:
        await turns.mine()
        begun.append(number)

    requests = [asyncio.ensure_future(request(number)) for number in range(7)]
    requests[2].cancel()
    most, before = 0, 0
    while len(begun) < 6:
        await asyncio.sleep(0)
        requests[2].cancel()
        most, before = max(most, len(begun) - before), len(begun)
    assert begun == [0, 1, 3, 4, 5, 6] and most == 2


@pytest.mark.parametrize(
    ("received", "path", "whole"),
    [
        (b"", None, False),
        (b"GET /health/live HTT", None, False),
        (b"GET /health/live?x=1 HTTP/1.1\r\n", "/health/live", False),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n", "/health/live", True),
        (b"nonsense\r\n\r\n", "", True),
        (POST, "/v1/completions", True),
        (POST[:-1], "/v1/completions", False),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "/x", False),
    ],
)
async def test_what_a_request_wants_is_read_from_its_beginning(received: bytes, path: str | None, whole: bool) -> None:
    assert (path_of(received), is_whole(received)) == (path, whole)


async def test_room_follows_the_files_that_may_be_open() -> None:
    assert room_within(1024) == Room(928, 696)
    assert room_within(50) == Room(16, 12)
