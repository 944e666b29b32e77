"""Requests whose grammar compiles: they wait here, beside the steps, until it is ready or has taken too long.

Called by the engine's thread only; the compiling runs in threads of its own, which answer through `done`.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pagefleet_contract.openai_error import CODE_QUEUE_FULL, Refusal
from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.executor import Executor
from pagefleet_runtime.request import GenerationRequest

# More would take the processor from the steps; one that hangs must not hold up all the others.
_NUM_THREADS = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request's grammar is ready, or was refused."""

    request_id: str
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: GenerationRequest
    deadline_seconds: float


class Preparation:
    def __init__(
        self, executor: Executor, timeout_seconds: float, most_waiting: int, done: Callable[[Prepared], None]
    ) -> None:
        self._executor = executor
        self._most_waiting = most_waiting
        self._timeout_seconds = timeout_seconds
        self._done = done
        self._waiting: dict[str, _Waiting] = {}
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")

    @property
    def next_deadline_seconds(self) -> float | None:
        return min((waiting.deadline_seconds for waiting in self._waiting.values()), default=None)

    def start(self, request: GenerationRequest, now_seconds: float) -> bool:
        """Begin to compile; `done` is called with the outcome, from another thread. Return False where too many
        compile already."""
        if len(self._waiting) >= self._most_waiting:
            return False
        self._waiting[request.request_id] = _Waiting(request, now_seconds + self._timeout_seconds)
        self._threads.submit(self._prepare, request)
        return True

    def finish(self, prepared: Prepared) -> GenerationRequest | None:
        """Return the request that is ready or refused, or None where it was given up in the meantime."""
        waiting = self._waiting.pop(prepared.request_id, None)
        if waiting is None:
            self._executor.forget(prepared.request_id)
            return None
        return waiting.request

    def give_up(self, request_id: str) -> bool:
        """Drop a request that waits here. Return whether there was one."""
        return self._waiting.pop(request_id, None) is not None

    def expire(self, now_seconds: float) -> tuple[str, ...]:
        """Drop the requests that have waited too long; return their ids."""
        late = [name for name, waiting in self._waiting.items() if waiting.deadline_seconds <= now_seconds]
        for request_id in late:
            del self._waiting[request_id]
        return tuple(late)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def timeout_refusal(self) -> Refusal:
        seconds = f"{self._timeout_seconds:g} s"
        return invalid(
            f"invalid grammar: compiling it timed out after {seconds}; use a simpler schema", code="invalid_grammar"
        ).refusal

    @property
    def full_refusal(self) -> Refusal:
        message = f"{self._most_waiting} requests wait for their grammars to compile; try again later"
        return Refusal(429, CODE_QUEUE_FULL, message, retry_after_seconds=1)

    def _prepare(self, request: GenerationRequest) -> None:
        refusal = None
        try:
            self._executor.prepare(request)
        except RequestRefused as refused:
            refusal = refused.refusal
        except Exception:
            logger.exception("the grammar of request %s failed to compile by a bug of ours", request.request_id)
            refusal = Refusal(500, "internal_error", "the server failed on this grammar; its log says why")
        self._done(Prepared(request.request_id, refusal))
