"""Waiting for another program with a deadline, and with an end as soon as it cannot come any more."""

import time
from collections.abc import Callable, Iterator


def attempts(seconds: float, pause_seconds: float = 0.05) -> Iterator[float]:
    """Yield the seconds that are left, at once and then after each pause; end when none are."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        yield left
        time.sleep(min(pause_seconds, left))


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition came true in time."""
    return any(condition() for _ in attempts(seconds))
