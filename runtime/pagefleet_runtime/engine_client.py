"""The server's end of the engine: requests out, tokens in. Lives in the server process's asyncio loop.

Nobody else talks to the engine. One message a step arrives and is handed out to the streams of its requests; a stream
that nobody reads grows, and holds up nobody.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from pagefleet_contract.engine import ServingSettings
from pagefleet_runtime.engine_link import EngineLink
from pagefleet_runtime.errors import Refusal, RequestRefused
from pagefleet_runtime.protocol import (
    Abort,
    Accepted,
    ChangePolicy,
    EngineInfo,
    FromEngine,
    Loaded,
    LoadFailed,
    LoadProgress,
    PolicyChange,
    PolicyChanged,
    Rejected,
    StepOutput,
    StopChoice,
    Submit,
    TokenOutput,
)
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.snapshot import EngineSnapshot

EngineState = Literal["loading", "ready", "draining", "failed"]

logger = logging.getLogger(__name__)


class QueueFigures(Protocol):
    def observe_queue(self, seconds: float) -> None: ...


class RequestStream:
    """The outputs of one request: an async iterator of TokenOutput that ends when every choice has finished.

    `__anext__` raises RequestRefused where the request timed out in the queue: only instead of the first output.
    An engine that is lost, or a drain that took too long, ends each unfinished choice with finish_reason `error`.
    Use it as `async with await client.open(request) as stream:`, or call `close()`.
    """

    def __init__(self, client: "EngineClient", request: GenerationRequest) -> None:
        self.request = request
        self._client = client
        self._open_choices = set(range(request.num_choices))
        self._outputs: deque[TokenOutput] = deque()
        self._refusal: Refusal | None = None
        self._accepted = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def stop_choice(self, choice_index: int) -> None:
        """End a choice in which a stop string was found; no more of its outputs will come."""
        if choice_index in self._open_choices:
            self._open_choices.discard(choice_index)
            self._outputs = deque(output for output in self._outputs if output.choice_index != choice_index)
            self._client._stop_choice(self, choice_index)

    def close(self) -> None:
        """Give the request up, if it hasn't finished: the engine frees its blocks. Idempotent; must be called."""
        if not self._closed:
            self._closed = True
            self._client._close(self)
            self._wake()

    @property
    def finished(self) -> bool:
        """Whether every choice has ended in the engine (its last outputs may still wait to be read)."""
        return not self._open_choices or self._refusal is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenOutput:
        while not self._outputs:
            if self._refusal is not None:
                raise RequestRefused(self._refusal)
            if self._closed or not self._open_choices:
                raise StopAsyncIteration
            await self._changed()
        return self._outputs.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def _wait_accepted(self) -> None:
        while not self._accepted and not self._outputs:
            if self._refusal is not None:
                raise RequestRefused(self._refusal)
            await self._changed()

    async def _changed(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _accept(self) -> None:
        self._accepted = True
        self._wake()

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._wake()

    def _push(self, output: TokenOutput) -> None:
        if output.choice_index not in self._open_choices:
            return  # stopped here; what the engine drew in the meantime is not part of the answer
        self._outputs.append(output)
        if output.finish_reason is not None:
            self._open_choices.discard(output.choice_index)
        self._wake()

    def _end_with_error(self, message: str) -> None:
        for choice_index in sorted(self._open_choices):
            self._push(TokenOutput(self.request.request_id, choice_index, None, finish_reason="error", error=message))


class EngineClient:
    """Sends requests to the engine and hands its outputs out.

    Call `start()` inside the running loop first. `info` is None until the model has loaded; `snapshot` is the last one
    received; `load` is the last progress seen. `state` moves loading, ready, draining; failed from anywhere.
    """

    info: EngineInfo | None
    snapshot: EngineSnapshot
    state: EngineState
    load: LoadProgress | None
    failure: str | None  # why state is failed, in one line

    def check_accepts(self) -> None:
        """Raise RequestRefused (503: model_loading, draining or engine_failed, with retry-after) unless ready."""
        raise NotImplementedError

    async def open(self, request: GenerationRequest) -> RequestStream:
        """Submit a request and wait until it is in the engine's queue (its grammar has compiled).

        Raises RequestRefused: what check_accepts raises, 400 for what can't be, 429 for a full queue. Cancelling it
        takes the request back.
        """
        raise NotImplementedError

    async def change_policy(self, change: PolicyChange) -> PolicyChange:
        """Change live settings; return all that is in force now. An empty change only asks. Raises RequestRefused."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet ended or closed."""
        raise NotImplementedError

    def begin_drain(self) -> None:
        """Take no new requests. Those in flight go on; after drain_timeout_seconds they end with an error."""
        raise NotImplementedError

    async def drained(self) -> None:
        """Return once nothing is in flight."""
        raise NotImplementedError
