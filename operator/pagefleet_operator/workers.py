"""Runs the work queue: a bounded number of reconciles at a time, and what each result means for the next look."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.faults import NotLeading
from pagefleet_operator.work_queue import Pace, WorkQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """All is as it should be. `again_in_seconds` is when to look again even without an event."""

    again_in_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Something was in the way; `at_least_seconds` is what the other side asked to wait."""

    at_least_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Gone:
    """The object isn't there any more."""


Result = Done | Failed | Gone
Reconcile = Callable[[ServiceKey], Awaitable[Result]]


def _lane(key: ServiceKey) -> tuple[str, str]:
    return key.namespace, key.name


class Workers:
    """Owns the queue. `add` may be called before `run`, and from any handler."""

    def __init__(self, pace: Pace, num_workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue: WorkQueue[ServiceKey] = WorkQueue(pace, _lane)
        self._clock = clock
        self._slots = asyncio.Semaphore(num_workers)
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._lost: NotLeading | None = None

    def add(self, key: ServiceKey) -> None:
        self._queue.add(key, self._clock())
        self._changed.set()

    def forget(self, key: ServiceKey) -> None:
        self._queue.forget(key)

    def waiting(self) -> tuple[int, float]:
        return self._queue.waiting(self._clock())

    def is_idle(self) -> bool:
        return self._queue.is_idle()

    async def run(self, reconcile: Reconcile) -> None:
        """Work until cancelled. Raises NotLeading when a reconcile found that it may not write any more."""
        try:
            while True:
                await self._slots.acquire()
                key = await self._next()
                task = asyncio.create_task(self._work(key, reconcile), name=f"reconcile {key.namespace}/{key.name}")
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _next(self) -> ServiceKey:
        while True:
            if self._lost is not None:
                raise self._lost
            self._changed.clear()
            now = self._clock()
            key = self._queue.take(now)
            if key is not None:
                return key
            try:
                async with asyncio.timeout(self._queue.seconds_until_due(now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _work(self, key: ServiceKey, reconcile: Reconcile) -> None:
        try:
            result = await reconcile(key)
        except NotLeading as lost:
            self._lost = lost
            result = Failed()
        finally:
            self._slots.release()
        now = self._clock()
        match result:
            case Done(again):
                self._queue.done(key)
                self._queue.add_after(key, again, now)
            case Failed(at_least):
                self._queue.failed(key, now, random.random(), at_least)
            case Gone():
                self._queue.done(key)
        self._changed.set()
