"""Which service is looked at next, and when. Pure: the clock and the jitter are passed in.

A key is due a moment after it was added, so that bursts are one piece of work. Keys of one lane (the same name, an old
and a new object) are never worked on at the same time. A key that failed waits, doubling, and an event can bring it
forward only to the shortest wait.
"""

import heapq
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pace:
    """Waiting times, in seconds."""

    debounce: float = 0.1
    retry_first: float = 1.0
    retry_longest: float = 300.0

    def retry(self, failures: int, jitter: float) -> float:
        """Return the wait after that many failures in a row; jitter, 0 to 1, takes up to a fifth off."""
        doubled = self.retry_first * 2.0 ** min(failures - 1, 30)
        return min(self.retry_longest, doubled) * (1 - jitter / 5)


class WorkQueue(Generic[K]):
    """Keys with the time at which they are due."""

    def __init__(self, pace: Pace, lane: Callable[[K], Hashable]) -> None:
        self._pace = pace
        self._lane = lane
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # may hold times that _due no longer says
        self._order = itertools.count()
        self._busy: dict[Hashable, K] = {}
        self._failures: dict[K, int] = {}
        self._held_until: dict[K, float] = {}  # of failed keys: not before, even for an event

    def add(self, key: K, now: float) -> None:
        """Something about the key has changed."""
        self._schedule(key, max(now + self._pace.debounce, self._held_until.get(key, 0.0)))

    def add_after(self, key: K, seconds: float, now: float) -> None:
        """Look at the key again then, unless something happens before."""
        self._schedule(key, now + seconds)

    def take(self, now: float) -> K | None:
        """Return a key that is due and whose lane is free, the one that has waited longest first; or None."""
        passed: list[tuple[float, int, K]] = []
        taken: K | None = None
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            due, _, key = entry
            if self._due.get(key) != due:
                continue
            if self._lane(key) in self._busy:
                passed.append(entry)
                continue
            taken = key
            break
        for entry in passed:
            heapq.heappush(self._heap, entry)
        if taken is not None:
            del self._due[taken]
            self._busy[self._lane(taken)] = taken
        return taken

    def done(self, key: K) -> None:
        """The work on a key that was taken is over, and it went well."""
        self._free(key)
        self._failures.pop(key, None)
        self._held_until.pop(key, None)

    def failed(self, key: K, now: float, jitter: float, at_least: float = 0.0) -> float:
        """The work failed: try again later. Return in how many seconds; `at_least` is what the other side asked for."""
        self._free(key)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = max(self._pace.retry(failures, jitter), at_least)
        self._held_until[key] = now + max(self._pace.retry_first, at_least)
        # What was added meanwhile is part of the next try.
        due = self._due.pop(key, None)
        first = now + wait if due is None else min(now + wait, max(due, self._held_until[key]))
        self._schedule(key, first)
        return first - now

    def forget(self, key: K) -> None:
        """The key's object is gone: nothing more is to be done about it. Work that is going on ends by itself."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._held_until.pop(key, None)

    def seconds_until_due(self, now: float) -> float | None:
        """Return when `take` may return a key next, if nothing is added or done before; None where never."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        if self._lane(self._heap[0][2]) not in self._busy:
            return max(0.0, self._heap[0][0] - now)
        free = (due for due, _, key in self._heap if self._due.get(key) == due and self._lane(key) not in self._busy)
        first = min(free, default=None)
        return None if first is None else max(0.0, first - now)

    def waiting(self, now: float) -> tuple[int, float]:
        """Return how many keys are due and how long the first of them has been."""
        late = [now - due for due in self._due.values() if due <= now]
        return len(late), max(late, default=0.0)

    def is_idle(self) -> bool:
        """Whether nothing is due, ever, and nothing is being worked on."""
        return not self._due and not self._busy

    def _schedule(self, key: K, due: float) -> None:
        known = self._due.get(key)
        if known is not None and known <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))

    def _free(self, key: K) -> None:
        if self._busy.get(self._lane(key)) == key:
            del self._busy[self._lane(key)]
