"""One request of a client: what has been answered so far, and the end that it may be put to from outside."""

import asyncio
import time
from dataclasses import dataclass

from starlette.types import Scope, Send

from pagefleet_contract.names import HEADER_RETRY_AFTER
from pagefleet_contract.openai_error import Refusal, error_object, json_bytes
from pagefleet_router.headers import Headers, request_id_of, to_client


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that is all there."""

    status: int
    headers: Headers
    body: bytes


def refusal_answer(refusal: Refusal) -> WholeAnswer:
    """Return the HTTP answer to a refused request."""
    headers = [(b"content-type", b"application/json")]
    if refusal.retry_after_seconds is not None:
        headers.append((HEADER_RETRY_AFTER.encode(), str(refusal.retry_after_seconds).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return WholeAnswer(refusal.status, headers, json_bytes(error_object(refusal)))


class Exchange:
    """Created in the task that answers. Others may stop it; the task finds out by being cancelled."""

    def __init__(self, scope: Scope, send: Send, closes: bool) -> None:
        self.method: str = scope["method"]
        # A snapshot: uvicorn goes on appending to its list.
        self.headers: Headers = list(scope["headers"])
        self.request_id = request_id_of(self.headers)
        self.scope = scope
        self.status: int | None = None
        self.first_byte_seconds: float | None = None
        self.has_ended = False
        self.stopped_by: Refusal | None = None
        self.client_has_left = False
        self._closes = closes
        self._send = send
        self._task = asyncio.current_task()
        self._started = time.monotonic()

    # --- answering

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head; without a content-length the body goes in chunks."""
        self.status = status
        headers = to_client(headers, self.request_id)
        # After 408 more of the request may come, at any time.
        if self._closes or status == 408:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_on(self, data: bytes) -> None:
        """Send a piece of the body. Waits while the client reads slower than the replica writes."""
        self._note_first_byte()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece."""
        self._note_first_byte()
        self.has_ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, answer: WholeAnswer) -> None:
        """Send a whole answer."""
        headers = [pair for pair in answer.headers if pair[0] != b"content-length"]
        if answer.status not in (204, 304):
            headers.append((b"content-length", str(len(answer.body)).encode()))
        await self.start(answer.status, headers)
        await self.end(answer.body)

    def cut(self) -> None:
        """Close the client's connection: an answer whose length was promised can't be ended otherwise."""
        self.has_ended = True
        self.scope["state"]["cut"]()

    # --- stopping

    def stop(self, refusal: Refusal) -> None:
        """End the request with this refusal, in its answer or in its stream."""
        if not self.has_ended and not self.is_stopped and self._task is not None:
            self.stopped_by = refusal
            self._task.cancel()

    def leave(self) -> None:
        """The client has left: nobody needs an answer."""
        if not self.has_ended and not self.is_stopped and self._task is not None:
            self.client_has_left = True
            self._task.cancel()

    @property
    def is_stopped(self) -> bool:
        return self.client_has_left or self.stopped_by is not None

    def _note_first_byte(self) -> None:
        if self.first_byte_seconds is None:
            self.first_byte_seconds = time.monotonic() - self._started
