"""`python -m pagefleet_runtime`: serve a model."""

import os
import signal
import sys
from types import FrameType


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(0)  # nothing has begun that would have to be finished


if __name__ == "__main__":
    # Before the imports: process 1 of a container doesn't end by a signal that it has no handler for, and would be
    # waited for until it is killed. Serving sets handlers of its own.
    signal.signal(signal.SIGTERM, _end_at_once)

    from pagefleet_runtime.main import main

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is answered and said. Taking the interpreter apart, and waiting for its threads, would take seconds.
    os._exit(code)
