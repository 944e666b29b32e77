"""One at a time, across processes: a file that the kernel unlocks when its holder ends, however it ends."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path, report: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Hold the lock for the length of the block; wait for whoever holds it, and say so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another command is at it; waiting for it to let go of {file}")
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
