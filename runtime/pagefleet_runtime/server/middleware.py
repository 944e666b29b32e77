"""What happens around every request, as plain ASGI (wrappers that re-make the request lose disconnects and streams)."""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefleet_contract.names import HEADER_REQUEST_ID
from pagefleet_contract.openai_error import CODE_BODY_TOO_LARGE, Refusal
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.server.errors import INTERNAL, error_response

logger = logging.getLogger(__name__)

_SAFE_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")


def request_id_of(given: str | None) -> str:
    """Return the id the client gave, if it is short and safe to print, or a new one."""
    return given if given is not None and _SAFE_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


class RequestScope:
    """Gives each request its id, echoes it, and answers a bug of ours with a plain 500 and a trace in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope).get(HEADER_REQUEST_ID))
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[HEADER_REQUEST_ID] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            logger.exception("request %s (%s %s) failed by a bug of ours", request_id, scope["method"], scope["path"])
            if started:
                # Half an answer is out: closing the connection is the only way left to say that it isn't whole.
                raise
            await error_response(INTERNAL)(scope, receive, send_with_id)


class BodyLimit:
    """Counts the body while it arrives, so that a missing or wrong content-length changes nothing (413)."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = Refusal(
            413, CODE_BODY_TOO_LARGE, f"the body is larger than the {self.max_body_bytes} bytes allowed here"
        )
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self.max_body_bytes:
            await error_response(refusal)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_body_bytes:
                raise RequestRefused(refusal)
            return message

        await self.app(scope, counted, send)
