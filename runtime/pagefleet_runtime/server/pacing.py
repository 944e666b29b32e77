"""Requests begin a few at a time, so that thousands that come at once don't keep the loop from what is urgent."""

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from pagefleet_contract.names import PATH_LIVE, PATH_METRICS, PATH_READY

# Checking a request, and putting its prompt into tokens, takes the loop about a millisecond.
_BEGIN_PER_TURN = 2

# What is asked to know how the server is, and must be answered in time when it is busy.
PROBE_PATHS = frozenset({PATH_LIVE, PATH_READY, PATH_METRICS})


def is_urgent(path: str) -> bool:
    """Whether a request to the path goes before all that generate: probes, figures, the operator's."""
    return path in PROBE_PATHS or path.startswith("/pagefleet/")


class Paced:
    """Lets a few requests begin in one turn of the loop, in the order of their arrival; urgent ones begin at once."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._turns = Turns(_BEGIN_PER_TURN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_urgent(scope["path"]):
            await self._turns.mine()
        await self.app(scope, receive, send)


class Turns:
    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def mine(self) -> None:
        """Return when it is this caller's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._release, loop.call_soon)
        await turn

    def _release(self, call_soon: Callable[..., object]) -> None:
        released = 0
        while self._waiting and released < self._per_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # or its caller was cancelled
                turn.set_result(None)
                released += 1
        if self._waiting:
            call_soon(self._release, call_soon)
