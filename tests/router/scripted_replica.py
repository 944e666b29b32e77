"""Replicas that do as a test tells them, byte by byte: a server on a loopback address of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Script = Callable[["Asked"], Awaitable[None]]


class Asked:
    """One request as it arrived, and the connection to answer on."""

    def __init__(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head, self.body = head, body
        self.line, *lines = head.decode("latin-1").split("\r\n")
        self.headers = [tuple(line.split(": ", 1)) for line in lines]
        self.reader = reader
        self.writer = writer

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, found
        return found[0] if found else None

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, body: bytes | dict[str, Any], *headers: str) -> None:
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        kind = "application/json" if isinstance(body, dict) else "text/plain"
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(content)}", *headers]
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + content)

    async def begin_stream(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def event(self, data: bytes) -> None:
        """Send bytes as one chunk of a stream."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def gone(self) -> None:
        """Return when the router has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """End the connection as a process that is killed does."""
        self.writer.transport.abort()


async def refuse(asked: Asked, status: int, code: str) -> None:
    await asked.answer(status, {"error": {"message": code, "type": "server_error", "param": None, "code": code}})


async def greet(asked: Asked) -> None:
    await asked.answer(200, b"hello")


@dataclass
class ScriptedReplica:
    """Its requests are what has arrived so far. Change `script` to change what it does with the next one."""

    address: str
    port: int
    script: Script
    requests: list[Asked]
    num_connections: int = 0


@contextlib.asynccontextmanager
async def scripted_replica(script: Script = greet, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Any]:
    """Start a replica; `port` is that of another one, since all replicas of a service listen on the same."""
    replica = ScriptedReplica(address, port, script, [])
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replica.num_connections += 1
        writers.add(writer)
        try:
            while (asked := await _read(reader, writer)) is not None:
                replica.requests.append(asked)
                await replica.script(asked)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the router left, as tests make it do
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, address, port, limit=2**24)
    replica.port = server.sockets[0].getsockname()[1]
    try:
        yield replica
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.IncompleteReadError:
        return None
    asked = Asked(head, b"", reader, writer)
    asked.body = await reader.readexactly(int(asked.header("content-length") or 0))
    return asked
