"""Forwarded connections over real sockets: every byte, each half's end, every break."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

import pytest

from pagefleet_local.node.endpoints import Backend, Listener
from pagefleet_local.node.forwarding import Forwarder

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def no_refusal(listener: Listener, error: OSError) -> None:
    raise AssertionError(f"{listener}: {error}")


@contextlib.asynccontextmanager
async def forwarded(*serve: Serve) -> AsyncIterator[int]:
    """Yield the port that is forwarded to servers of these functions."""
    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in serve]
    backends = tuple(Backend("127.0.0.1", server.sockets[0].getsockname()[1]) for server in servers)
    listener, forwarder = Listener("127.0.0.1", free_port(), "ns", "s"), Forwarder(no_refusal)
    assert await forwarder.follow({listener: backends})
    try:
        yield listener.port
    finally:
        forwarder.close()
        for server in servers:
            server.close()


async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(str(len(await reader.read())).encode())
    writer.close()


def name(text: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text.encode())
        writer.close()

    return serve


def run(coroutine: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await coroutine
            # The servers' ends of the connections.
            while rest := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(rest)

    asyncio.run(bounded())


def test_many_bytes_pass_whole_and_a_client_may_end_its_half_and_still_read() -> None:
    async def check() -> None:
        async with forwarded(count) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x" * 5_000_000)
            writer.write_eof()
            assert await reader.read() == b"5000000"
            writer.close()

    run(check())


def test_a_slow_reader_slows_the_sender_instead_of_filling_memory() -> None:
    sent, stuck = [0], asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65536)
                try:
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                except TimeoutError:
                    break
                sent[0] += 65536
        stuck.set()
        writer.transport.abort()

    async def check() -> None:
        async with forwarded(pour) as port:
            client = socket.create_connection(("127.0.0.1", port))
            await stuck.wait()
            client.close()

    run(check())
    # Sockets' own buffers hold some megabytes; an unbounded forwarder would have taken gigabytes.
    assert sent[0] < 100 << 20


def test_connections_go_round_and_a_dead_backend_is_passed_over() -> None:
    async def check() -> None:
        listener, forwarder = Listener("127.0.0.1", free_port(), "ns", "s"), Forwarder(no_refusal)
        servers = [await asyncio.start_server(name(text), "127.0.0.1", 0) for text in "ab"]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        backends = tuple(Backend("127.0.0.1", port) for port in (*ports, free_port()))
        await forwarder.follow({listener: backends})
        answers = []
        for _ in range(12):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            answers.append((await reader.read()).decode())
            writer.close()
        assert set(answers) == {"a", "b"} and min(answers.count("a"), answers.count("b")) >= 4
        forwarder.close()
        for server in servers:
            server.close()

    run(check())


def test_a_server_that_breaks_breaks_the_client_s_connection() -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        await writer.drain()
        await reader.readexactly(2)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def check() -> None:
        async with forwarded(breaks) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.readexactly(4) == b"half"
            writer.write(b"go")
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()

    run(check())


def test_a_client_that_breaks_is_noticed_by_the_server() -> None:
    noticed = asyncio.Event()

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        noticed.set()
        writer.close()

    async def check() -> None:
        async with forwarded(listens) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readexactly(5)
            writer.transport.abort()
            await noticed.wait()
            writer.close()

    run(check())


def test_when_no_backend_answers_the_connection_is_broken_at_once() -> None:
    async def check() -> None:
        listener, forwarder = Listener("127.0.0.1", free_port(), "ns", "s"), Forwarder(no_refusal)
        await forwarder.follow({listener: (Backend("127.0.0.1", free_port()),)})
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        forwarder.close()

    run(check())


def test_a_new_table_moves_new_connections_and_leaves_open_ones() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def check() -> None:
        listener, forwarder = Listener("127.0.0.1", free_port(), "ns", "s"), Forwarder(no_refusal)
        old = await asyncio.start_server(echo, "127.0.0.1", 0)
        new = await asyncio.start_server(name("new"), "127.0.0.1", 0)
        await forwarder.follow({listener: (Backend("127.0.0.1", old.sockets[0].getsockname()[1]),)})
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        await forwarder.follow({listener: (Backend("127.0.0.1", new.sockets[0].getsockname()[1]),)})
        reader2, writer2 = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader2.read() == b"new"
        writer.write(b"2")
        assert await reader.readexactly(1) == b"2"
        await forwarder.follow({listener: ()})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"3")
        assert await reader.readexactly(1) == b"3"
        for each in (writer, writer2):
            each.close()
        forwarder.close()
        old.close()
        new.close()

    run(check())


def test_a_port_that_is_taken_is_told_and_tried_again() -> None:
    refused: list[str] = []

    async def refuse(listener: Listener, error: OSError) -> None:
        refused.append(f"{listener.service} {error.strerror}")

    async def check() -> None:
        forwarder, server = Forwarder(refuse), await asyncio.start_server(name("x"), "127.0.0.1", 0)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            table = {
                Listener("127.0.0.1", taken.getsockname()[1], "ns", "s"): (
                    Backend("127.0.0.1", server.sockets[0].getsockname()[1]),
                )
            }
            assert not await forwarder.follow(table)
        assert await forwarder.follow(table)
        assert len(refused) == 1 and "in use" in refused[0]
        forwarder.close()
        server.close()

    run(check())
