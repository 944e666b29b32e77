"""Requests as bytes on a socket of their own, for clients that leave, and for thousands at the same moment."""

import asyncio
import json
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.runtime.live_server import LiveServer

_SECONDS = 120


def address(server: LiveServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def post_bytes(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content


class RawRequest:
    """A request that has been sent; leaving the context closes its socket, read or not."""

    def __init__(self, server: LiveServer, body: dict[str, Any]) -> None:
        self._socket = socket.create_connection(address(server), timeout=_SECONDS)
        self._socket.sendall(post_bytes(body))
        self.received = b""

    def read_until(self, marker: bytes, times: int = 1) -> None:
        """Read until the marker has come so often."""
        while self.received.count(marker) < times:
            part = self._socket.recv(4096)
            assert part, f"the server closed after {self.received!r}"
            self.received += part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Reply:
    """An answer as it came; status 0: the connection ended without one."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


async def post(server: LiveServer, body: dict[str, Any]) -> Reply:
    """Send one request on a connection of its own and read its answer."""
    reader, writer = await asyncio.open_connection(*address(server))
    try:
        writer.write(post_bytes(body))
        await writer.drain()
        return parsed(await reader.read())
    except ConnectionError:
        return Reply(0, {}, b"")
    finally:
        writer.close()


def post_at_once(server: LiveServer, bodies: list[dict[str, Any]]) -> list[Reply]:
    """Send all requests, each on a connection of its own, before the first answer is read."""
    content = [post_bytes(body) for body in bodies]
    with ExitStack() as stack:
        connections = []
        for part in content:
            connection = stack.enter_context(socket.create_connection(address(server), timeout=_SECONDS))
            connection.sendall(part)
            connections.append(connection)
        return [parsed(_rest(connection)) for connection in connections]


def _rest(connection: socket.socket) -> bytes:
    """Return what comes until the end, or until the connection breaks."""
    parts = []
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def parsed(received: bytes) -> Reply:
    """Return an answer that isn't a stream."""
    head, separator, content = received.partition(b"\r\n\r\n")
    if not separator:
        return Reply(0, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Reply(int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, content)
