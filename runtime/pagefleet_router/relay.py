"""An answer's way from the replica to the client: streams event by event, everything else whole where it is small."""

import json

from pagefleet_contract.openai_error import Refusal
from pagefleet_router.events import EventRelay
from pagefleet_router.exchange import Exchange, WholeAnswer
from pagefleet_router.headers import Headers, header
from pagefleet_router.upstream import Answer, Lost

# Below this an answer is sent when it is whole, so that one that breaks can be told apart from one that is short.
_MOST_WHOLE_BYTES = 1024 * 1024
_MOST_REFUSAL_BYTES = 64 * 1024


class StreamRelay:
    """Server-sent events: the head at once, each event as it comes."""

    def __init__(self, path: str, answer: Answer, exchange: Exchange) -> None:
        self._answer = answer
        self._exchange = exchange
        self._events = EventRelay(path)

    async def run(self) -> None:
        """Raises Lost."""
        head = self._answer.head
        await self._exchange.start(head.status, head.headers)
        while data := await self._answer.read():
            whole = self._events.push(data)
            if whole:
                await self._exchange.pass_on(whole)
        await self._exchange.end(self._events.finish())

    def break_off(self, refusal: Refusal) -> bytes:
        return self._events.break_off(refusal)


class PlainRelay:
    """Anything else. Raises Lost from `run`; if nothing was sent until then, the client can still be told."""

    def __init__(self, answer: Answer, exchange: Exchange) -> None:
        self._answer = answer
        self._exchange = exchange

    async def run(self) -> None:
        head = self._answer.head
        pieces: list[bytes] = []
        num_bytes = 0
        while data := await self._answer.read():
            pieces.append(data)
            num_bytes += len(data)
            if num_bytes > _MOST_WHOLE_BYTES:
                await self._pass_on(b"".join(pieces))
                return
        await self._exchange.start(head.status, _with_length(head.headers, num_bytes, self._exchange.method))
        await self._exchange.end(b"".join(pieces))

    async def _pass_on(self, first: bytes) -> None:
        head = self._answer.head
        await self._exchange.start(head.status, head.headers)
        await self._exchange.pass_on(first)
        while data := await self._answer.read():
            await self._exchange.pass_on(data)
        await self._exchange.end()


def relay_of(path: str, answer: Answer, exchange: Exchange) -> StreamRelay | PlainRelay:
    """Return what passes this answer on. Events in a coding can't be read, so they go like anything else."""
    headers = answer.head.headers
    kind = (header(headers, b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind == b"text/event-stream" and header(headers, b"content-encoding") is None:
        return StreamRelay(path, answer, exchange)
    return PlainRelay(answer, exchange)


async def read_refusal(answer: Answer) -> tuple[WholeAnswer, object]:
    """Read a refusal whole; return it with its error code, None where it has none. Raises Lost."""
    pieces: list[bytes] = []
    while data := await answer.read():
        pieces.append(data)
        if sum(map(len, pieces)) > _MOST_REFUSAL_BYTES:
            raise Lost(f"its refusal is longer than {_MOST_REFUSAL_BYTES} bytes")
    body = b"".join(pieces)
    return WholeAnswer(answer.head.status, answer.head.headers, body), _error_code(body)


def _error_code(body: bytes) -> object:
    try:
        content = json.loads(body)
    except ValueError:
        return None
    error = content.get("error") if isinstance(content, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _with_length(headers: Headers, num_bytes: int, method: str) -> Headers:
    """Return the headers with the length that is known now; an answer to HEAD keeps the length it announced."""
    if method == "HEAD" or header(headers, b"content-length") is not None:
        return headers
    return [*headers, (b"content-length", str(num_bytes).encode())]
