"""Answers that end when the client leaves, and server-sent events.

The response objects do their work inside `__call__`, next to a watch on the connection: whatever they hold (a place in
the queue, a grammar that compiles, blocks) is given back by the `finally` of the cancelled work.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagefleet_contract.openai_error import error_object, json_bytes
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.server.errors import INTERNAL

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"

Frames = AsyncGenerator[bytes, None]
Work = Callable[[], Awaitable[Response]]


def data_frame(content: Any) -> bytes:
    return b"data: " + json_bytes(content) + b"\n\n"


def event_frame(name: str, content: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data_frame(content)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_client_listens(receive: Receive, work: Awaitable[None]) -> bool:
    """Run `work`; cancel it when the client leaves. Return whether it ran to its end. The body must have been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, leaving):
            task.cancel()
        # Wait for the work's own clean-up; what it raised besides its end was raised above.
        await asyncio.gather(working, leaving, return_exceptions=True)


class Answer(Response):
    """An answer that is worked out while the client listens, and dropped when it leaves."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work() -> None:
            response = await self._work()
            await response(scope, receive, send)

        if not await while_client_listens(receive, work()):
            logger.info("request %s: the client left", scope["state"]["request_id"])


class EventStream(Response):
    """Frames as server-sent events, with a comment where none comes for a while. Sent from within an Answer.

    The headers go out with the first frame, so that what fails before it is answered with its own HTTP status; but
    after `patience_seconds` they go anyway, so that no proxy takes a long prefill for a dead server. An error after
    that is an event, `error_frame` of OpenAI's error object, and the last one.
    """

    def __init__(
        self, frames: Frames, *, patience_seconds: float, error_frame: Callable[[dict[str, Any]], bytes] = data_frame
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        # Starlette counts an empty body; a stream has no length.
        del self.headers["content-length"]
        self._frames = frames
        self._patience_seconds = patience_seconds
        self._error_frame = error_frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_frame(frame: bytes) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": frame, "more_body": True})

        try:
            async with contextlib.aclosing(with_pings(self._frames, self._patience_seconds)) as frames:
                async for frame in frames:
                    await send_frame(frame)
        except Exception as error:
            if not started:
                raise
            await send_frame(self._error_frame(self._error(error, scope["state"]["request_id"])))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _error(self, error: Exception, request_id: str) -> dict[str, Any]:
        if isinstance(error, RequestRefused):
            return error_object(error.refusal)
        logger.error("request %s failed in its stream by a bug of ours", request_id, exc_info=error)
        return error_object(INTERNAL)


async def with_pings(frames: Frames, patience_seconds: float) -> AsyncGenerator[bytes, None]:
    """Yield the frames, and a comment whenever none has come for the keep-alive time (first: the patience)."""
    wait_seconds = patience_seconds
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(frames.__anext__())
            done, _ = await asyncio.wait({following}, timeout=wait_seconds)
            wait_seconds = KEEP_ALIVE_SECONDS
            if not done:
                yield _PING
                continue
            try:
                frame = following.result()
            except StopAsyncIteration:
                return
            finally:
                following = None
            yield frame
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await frames.aclose()
