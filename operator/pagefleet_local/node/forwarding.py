"""Services on this machine: the node listens on each cluster address and passes connections on to pods.

Bytes are passed in both directions without being looked at. The end of one direction is passed on as such, so a client
that has sent all may still read; a broken connection breaks its other half, so that a server learns of it.
"""

import asyncio
import logging
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping

from pagefleet_local.node.endpoints import Backend, Listener

_CONNECT_SECONDS = 5
_BACKLOG = 1024
_log = logging.getLogger(__name__)

Refused = Callable[[Listener, OSError], Awaitable[None]]


class Forwarder:
    """Listens where the table names pods, as a Service without any refuses connections everywhere. A new table changes
    where new connections go; open ones stay."""

    def __init__(self, refused: Refused) -> None:
        self._refused = refused
        self._servers: dict[Listener, asyncio.Server] = {}
        self._table: Mapping[Listener, tuple[Backend, ...]] = {}
        self._turns: dict[Listener, int] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    async def follow(self, table: Mapping[Listener, tuple[Backend, ...]]) -> bool:
        """Return whether it listens everywhere; called again, it tries again."""
        self._table = table
        wanted = {listener for listener, backends in table.items() if backends}
        for listener in self._servers.keys() - wanted:
            self._servers.pop(listener).close()
        for listener in sorted(wanted - self._servers.keys()):
            await self._listen(listener)
        self._turns = {listener: turn for listener, turn in self._turns.items() if listener in wanted}
        return wanted == self._servers.keys()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in self._connecting:
            task.cancel()

    async def _listen(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._servers[listener] = await loop.create_server(
                lambda: _Side(lambda side: self._accept(listener, side)),
                listener.address,
                listener.port,
                backlog=_BACKLOG,
            )
        except OSError as error:
            await self._refused(listener, error)

    def _accept(self, listener: Listener, client: "_Side") -> None:
        client.transport.pause_reading()
        task = asyncio.create_task(self._connect(listener, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, listener: Listener, client: "_Side") -> None:
        """Join the client to the first pod that answers, in turn from the next one on; to none: break it."""
        backends = self._table.get(listener, ())
        turn = self._turns.get(listener, random.randrange(1 << 16))
        self._turns[listener] = turn + 1
        loop = asyncio.get_running_loop()
        for step in range(len(backends)):
            backend = backends[(turn + step) % len(backends)]
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    _, server = await loop.create_connection(_Side, backend.address, backend.port)
            except OSError as error:  # a timeout is one too
                _log.info(
                    "%s of Service %s/%s does not answer: %s", backend, listener.namespace, listener.service, error
                )
                continue
            client.join(server)
            return
        _reset(client.transport)


class _Side(asyncio.Protocol):
    """One half of a forwarded connection; `other` is set when both are there."""

    transport: asyncio.Transport
    other: "_Side | None" = None

    def __init__(self, accepted: "Callable[[_Side], None] | None" = None) -> None:
        self._accepted = accepted
        self._ended = False  # it sends no more
        self._early = b""  # Python 3.11.2, Debian 12's, reads on although `connection_made` has told it to pause
        self._lost = False

    def join(self, other: "_Side") -> None:
        """Let bytes pass between the two from now on."""
        if self._lost:
            _reset(other.transport)
            return
        self.other, other.other = other, self
        for side, receiver in ((self, other), (other, self)):
            receiver.transport.write(side._early)
            if side._ended:
                receiver.transport.write_eof()
        if self._ended and other._ended:
            self.transport.close()
            other.transport.close()
        self.transport.resume_reading()
        other.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._accepted:
            self._accepted(self)
        else:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.other:
            self.other.transport.write(data)
        else:
            self._early += data

    def eof_received(self) -> bool:
        self._ended = True
        if self.other is None:
            return True  # passed on when there is somebody to pass it on to
        if self.other._ended:
            self.other.transport.close()
            return False
        if not self.other._lost:
            self.other.transport.write_eof()
        return True  # the other direction stays open

    def pause_writing(self) -> None:
        if self.other and not self.other._lost:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other and not self.other._lost:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self.other and not self.other._lost:
            if error:
                _reset(self.other.transport)
            else:
                self.other.transport.close()


def _reset(transport: asyncio.Transport) -> None:
    """Break the connection so that the other end sees a break and not an end."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
