"""The outputs of one request, as the API reads them."""

import asyncio
from collections import deque
from typing import Protocol, Self

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.request import GenerationRequest


class StreamOwner(Protocol):
    """Who must know that a stream is over: the engine client."""

    def choice_stopped(self, stream: "RequestStream", choice_index: int) -> None: ...

    def stream_closed(self, stream: "RequestStream") -> None: ...


class RequestStream:
    """The outputs of one request: an async iterator of TokenOutput that ends when every choice has finished.

    `__anext__` raises RequestRefused where the request timed out in the queue: only instead of the first output.
    An engine that is lost, or a drain that took too long, ends each unfinished choice with finish_reason `error`.
    Use it as `async with await client.open(request) as stream:`, or call `close()`.
    """

    def __init__(self, owner: StreamOwner, request: GenerationRequest) -> None:
        self.request = request
        self._owner = owner
        self._open_choices = set(range(request.num_choices))
        self._outputs: deque[TokenOutput] = deque()
        self._refusal: Refusal | None = None
        self._accepted = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def stop_choice(self, choice_index: int) -> None:
        """End a choice in which a stop string was found; no more of its outputs will come, read or not."""
        self._outputs = deque(output for output in self._outputs if output.choice_index != choice_index)
        if choice_index in self._open_choices:
            self._open_choices.discard(choice_index)
            self._owner.choice_stopped(self, choice_index)

    def close(self) -> None:
        """Give the request up, if it hasn't finished: the engine frees its blocks. Idempotent; must be called."""
        if not self._closed:
            self._closed = True
            self._owner.stream_closed(self)
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

    # --- called by the engine client

    async def wait_accepted(self) -> None:
        while not self._accepted and not self._outputs:
            if self._refusal is not None:
                raise RequestRefused(self._refusal)
            await self._changed()

    def accept(self) -> None:
        self._accepted = True
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._wake()

    def push(self, output: TokenOutput) -> None:
        if output.choice_index not in self._open_choices:
            return  # stopped here; what the engine drew in the meantime is not part of the answer
        self._outputs.append(output)
        if output.finish_reason is not None:
            self._open_choices.discard(output.choice_index)
        self._wake()

    def end_with_error(self, message: str) -> None:
        for choice_index in sorted(self._open_choices):
            self.push(TokenOutput(self.request.request_id, choice_index, None, finish_reason="error", error=message))

    async def _changed(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
