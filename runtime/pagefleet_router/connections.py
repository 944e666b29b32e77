"""Clients' connections: uvicorn's, with bounds on what a client may send and on how long it may take.

uvicorn reads a head of any length, waits for it for ever, and takes what follows a chunked body for headers.
"""

import asyncio
import re
from collections import deque
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagefleet_contract.openai_error import Refusal
from pagefleet_router.exchange import refusal_answer
from pagefleet_router.refusals import TOO_MANY_CONNECTIONS

_MOST_HEAD_BYTES = 64 * 1024
# What a chunked body may cost beside its content: the smallest chunk has five bytes around one.
_LEAST_OVERHEAD_BYTES, _OVERHEAD_FACTOR = 64 * 1024, 8
# How much of a body is read to no purpose after its request was answered, so that the client reads the answer.
_MOST_WASTED_BYTES = 32 * 2**20

_HEAD_TOO_LARGE = Refusal(431, "head_too_large", f"the request's head is larger than {_MOST_HEAD_BYTES} bytes")
_SLOW_HEAD = Refusal(408, "slow_head", "the request's head stopped coming")
_NOT_HTTP = Refusal(400, "invalid_http", "what was sent isn't an HTTP/1.1 request")
_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_UPGRADE = re.compile(rb"(?i)(?<=\r\n)upgrade(?=[ \t]*:)")


class Connection(HttpToolsProtocol):
    """One connection of a client. `max_connections` of them may be open; one more is refused in words. A request's
    head may take `head_seconds`."""

    def __init__(self, *, max_connections: int, head_seconds: float, **settings: Any) -> None:
        super().__init__(**settings)
        self._head_seconds = head_seconds
        self._max_connections = max_connections
        self._open_cycles: deque[RequestResponseCycle] = deque()
        self._head_timer: asyncio.TimerHandle | None = None
        self._part: Literal["none", "head", "body"] = "none"
        self._num_heads = 0
        self._head_bytes = 0
        self._sent_bytes = 0  # since the head, content and what is around it
        self._content_bytes = 0

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self._max_connections:
            self._refuse(TOO_MANY_CONNECTIONS)
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)
        # uvicorn tells the last request only; of several sent at once, the first is the one that runs.
        self._tell_all()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._part != "body":
            data = without_upgrade(data)
        num_heads = self._num_heads
        super().data_received(data)
        if self._part == "head" and num_heads == self._num_heads:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._refuse(_HEAD_TOO_LARGE)
        elif self._part == "body":
            self._sent_bytes += len(data)
            if self._is_abused():
                self.cut()

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NOT_HTTP)

    def cut(self) -> None:
        """Close at once, in the middle of an answer."""
        self._tell_all()
        self.transport.abort()

    # --- what the parser tells

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["cut"] = self.cut
        self._part, self._head_bytes = "head", 0
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part == "head":  # what follows a chunked body is dropped: it was never checked as a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._forget_head()
        self._part, self._sent_bytes, self._content_bytes = "body", 0, 0
        self._num_heads += 1
        super().on_headers_complete()
        while self._open_cycles and self._open_cycles[0].response_complete:
            self._open_cycles.popleft()
        if self.cycle is not None:
            self._open_cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._content_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part = "none"

    # --- bounds

    def _is_abused(self) -> bool:
        """Whether too much comes beside the content of a body, or too much of a body that nobody reads."""
        overhead_bytes = self._sent_bytes - self._content_bytes
        if overhead_bytes > _LEAST_OVERHEAD_BYTES + _OVERHEAD_FACTOR * self._content_bytes:
            return True
        return self._content_bytes > _MOST_WASTED_BYTES and self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._part == "none":
            self.transport.close()  # it never said anything
        else:
            self._refuse(_SLOW_HEAD)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in words if nothing else is being answered, and close."""
        if self.transport.is_closing():
            return
        if any(not cycle.response_complete for cycle in self._open_cycles):
            self.cut()
            return
        self.transport.write(refusal_bytes(refusal))
        self.transport.close()

    def _tell_all(self) -> None:
        for cycle in self._open_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()


def without_upgrade(data: bytes) -> bytes:
    """Return the beginning of a request with its Upgrade header under a name that says nothing.

    Nothing is upgraded here, and the parser would take the body of such a request (Java's client offers h2c with each)
    for the upgraded protocol.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return data if b"pgrade" not in head else _UPGRADE.sub(b"x-ignored", head) + end + rest


def refusal_bytes(refusal: Refusal) -> bytes:
    """Return a refusal as it goes over the wire, for what never became a request."""
    answer = refusal_answer(refusal)
    headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode()), (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {refusal.status} {_PHRASES[refusal.status]}\r\n".encode() + lines + b"\r\n" + answer.body
