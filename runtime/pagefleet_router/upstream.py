"""Connections to replicas (and to the Kubernetes API): HTTP/1.1, kept for the next request, answers as they come.

A connection of our own on llhttp: it knows whether an answer had begun when a replica was lost, stops reading where the
client does, ends the moment it is told to, and costs a fraction of a general client's time per event.
"""

import asyncio
import socket
import ssl
from collections import defaultdict
from dataclasses import dataclass
from typing import cast

import httptools

from pagefleet_router.headers import Headers, header

Address = tuple[str, int]

# Engines close idle connections after 5 s; to send on one that is just closing would lose the request.
_KEEP_SECONDS = 3.0
# Bytes of an answer that wait for a slow client before the replica is told to wait.
_MOST_WAITING_BYTES = 128 * 1024
_MOST_HEAD_BYTES = 256 * 1024
# A machine that is gone sends nothing, not even an end: probes on silent connections find out in half a minute.
_PROBE_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 15, 5, 3


class Unreachable(Exception):
    """The replica can't be connected to; the message says why."""


class Lost(Exception):
    """The connection ended before the answer did; the message says why."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Headers


class Upstream:
    """Sends requests, on connections that are kept a moment for the next one; in plain text without `tls`."""

    def __init__(
        self, connect_timeout_seconds: float, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._tls = tls
        self._server_name = server_name if tls is not None else None
        self._idle: defaultdict[Address, list[Answer]] = defaultdict(list)

    async def send(self, address: Address, request: bytes, body: bytes, has_no_body: bool) -> "Answer":
        """Send a request and return the answer as soon as its head is there; `has_no_body` is for answers to HEAD.

        Raises Unreachable, or Lost where the replica ended before the head. A kept connection that turns out to be
        closed doesn't count: the request goes out once more on a new one.
        """
        kept = self._kept(address)
        if kept is not None:
            try:
                return await self._exchange(kept, request, body, has_no_body)
            except Lost:
                if kept.has_begun:
                    raise
        return await self._exchange(await self._connect(address), request, body, has_no_body)

    def close(self) -> None:
        """Close the connections that are kept. Those in use stay."""
        for answers in self._idle.values():
            for answer in list(answers):
                answer.abort()

    def keep(self, answer: "Answer") -> None:
        self._idle[answer.address].append(answer)

    def forget(self, answer: "Answer") -> None:
        kept = self._idle.get(answer.address)
        if kept and answer in kept:
            kept.remove(answer)
        if not kept:
            self._idle.pop(answer.address, None)

    def _kept(self, address: Address) -> "Answer | None":
        kept = self._idle.get(address)
        return kept.pop() if kept else None

    async def _connect(self, address: Address) -> "Answer":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _, answer = await loop.create_connection(
                    lambda: Answer(self, address), *address, ssl=self._tls, server_hostname=self._server_name
                )
        except TimeoutError as error:
            raise Unreachable(f"no connection within {self._connect_timeout_seconds} s") from error
        except OSError as error:
            raise Unreachable(error.strerror or str(error)) from error
        return answer

    @staticmethod
    async def _exchange(answer: "Answer", request: bytes, body: bytes, has_no_body: bool) -> "Answer":
        try:
            answer.begin(request, body, has_no_body)
            await answer.read_head()
        except BaseException:
            answer.abort()
            raise
        return answer


class Answer(asyncio.Protocol):
    """One connection to a replica, and the answer that comes on it. Whoever sent the request reads it and closes it."""

    def __init__(self, pool: Upstream, address: Address) -> None:
        self.address = address
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._keep_timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._in_use = False
        self._has_no_body = False
        self._headers: Headers = []
        self._status = 0
        self._received_bytes = 0
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._is_paused = False
        self._is_complete = False
        self._may_keep = False

    # --- for whoever sent the request

    def begin(self, request: bytes, body: bytes, has_no_body: bool) -> None:
        """Send a request on this connection."""
        if self._keep_timer is not None:
            self._keep_timer.cancel()
            self._keep_timer = None
        self._reset()
        self._in_use = True
        self._has_no_body = has_no_body
        self._transport.write(request + body if len(body) < 65536 else request)
        if len(body) >= 65536:
            self._transport.write(body)

    @property
    def has_begun(self) -> bool:
        """Whether anything of the answer has come."""
        return self._received_bytes > 0

    @property
    def head(self) -> Head:
        return Head(self._status, self._headers)

    @property
    def is_whole(self) -> bool:
        """Whether everything has come and been read."""
        return self._is_complete and not self._pieces

    async def read_head(self) -> None:
        """Return when the head is there. Raises Lost."""
        while not self._status:
            if self._lost is not None:
                raise Lost(self._lost)
            await self._something()

    async def read(self) -> bytes:
        """Return what has come of the body, waiting for something; nothing at its end. Raises Lost."""
        while not self._pieces:
            if self._is_complete:
                return b""
            if self._lost is not None:
                raise Lost(self._lost)
            await self._something()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Done with the answer: keep the connection if it can be used again, end it otherwise."""
        if self._is_complete and self._may_keep and self._lost is None:
            self._in_use = False
            self._pool.keep(self)
            self._keep_timer = asyncio.get_running_loop().call_later(_KEEP_SECONDS, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once; the replica stops working on the request."""
        self._transport.abort()
        self._lose("the router ended it")

    # --- what the connection tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's isn't derived from it
        _probe_when_silent(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._in_use:
            self.abort()  # nobody has asked
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._lose(f"its answer isn't HTTP: {error}")
            self._transport.abort()
        if not self._status and self._received_bytes > _MOST_HEAD_BYTES:
            self._lose("the head of its answer has no end")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._status and exc is None and not self._is_complete and self._ends_with_the_connection():
            self._is_complete = True
        self._lose(str(exc) if exc is not None else "it closed the connection")
        self._pool.forget(self)

    # --- what the parser tells

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # what comes after the body is dropped
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim answer; the real one follows
        self._status = status
        self._may_keep = self._parser.should_keep_alive()
        if self._has_no_body:
            # The parser doesn't know, and would wait for a body.
            self._may_keep, self._is_complete = False, True
        self._wake()

    def on_body(self, data: bytes) -> None:
        if self._has_no_body:
            return
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _MOST_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._status:
            self._is_complete = True
            self._wake()

    # --- waiting

    async def _something(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        self._wake()

    def _ends_with_the_connection(self) -> bool:
        return header(self._headers, b"content-length") is None and header(self._headers, b"transfer-encoding") is None


def _probe_when_silent(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
