"""The body as JSON: strict in what is JSON, small in what it costs the loop."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic_core
from starlette.requests import ClientDisconnect, Request

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.errors import RequestRefused, invalid

# Above this size parsing and tokenising take milliseconds, which other requests shouldn't wait for.
THREAD_FROM_BYTES = 32 * 1024

Result = TypeVar("Result")


def check_content_type(header: str | None) -> None:
    """Raise RequestRefused (415) unless the header says JSON.

    A missing type is refused too: a browser may send such a body to any host without asking.
    """
    media_type = (header or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        found = f"'{media_type[:100]}'" if media_type else "missing"
        message = f"the content-type is {found}; send JSON with content-type: application/json"
        raise RequestRefused(Refusal(415, "unsupported_media_type", message))


def check_content_encoding(header: str | None) -> None:
    """Raise RequestRefused (415) where the body is compressed: nothing here says how large it would become."""
    encoding = (header or "").strip().lower()
    if encoding not in ("", "identity"):
        message = f"the content-encoding is '{encoding[:100]}'; send the JSON uncompressed, without it"
        raise RequestRefused(Refusal(415, "unsupported_media_type", message))


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the body's JSON object. Of equal keys the last one counts.

    Raises RequestRefused (400) for what isn't JSON (NaN, half surrogates and broken UTF-8 included), is nested more
    than 200 deep, holds a number beyond the range of a double, or is no object.
    """
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        found = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
        raise invalid(f"the body is {found}; it must be a JSON object", code="invalid_json")
    if not _all_finite(value):
        raise invalid("the body holds a number beyond the range of a double", code="invalid_json")
    return value


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_all_finite, value.values()))
    if isinstance(value, list):
        return all(map(_all_finite, value))
    return True


@dataclass(frozen=True, slots=True)
class Received:
    """A body's JSON object, and its size: large ones are worked on in a thread, so that the loop stays free."""

    values: dict[str, Any]
    num_bytes: int

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Call `work`, in a thread if the body is large enough for others to notice."""
        return work() if self.num_bytes < THREAD_FROM_BYTES else await asyncio.to_thread(work)


async def read_object(request: Request) -> Received:
    """Read the whole body and parse it. Raises RequestRefused (400, 413, 415)."""
    check_content_type(request.headers.get("content-type"))
    check_content_encoding(request.headers.get("content-encoding"))
    try:
        body = await request.body()
    except ClientDisconnect as error:
        raise invalid("the body ended before its end", code="invalid_json") from error
    empty = Received({}, len(body))
    return Received(await empty.off_loop(lambda: parse_object(body)), len(body))
