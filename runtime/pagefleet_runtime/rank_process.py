"""A rank of the engine beside the first: `python -m pagefleet_runtime.rank_process FD`, started over a socket pair.

It holds its share of the model, runs the plans that rank 0 sends, and ends when rank 0 does.
"""

import gc
import logging
import os
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import NoReturn

from pagefleet_runtime.errors import ModelRefused

_LOG_FORMAT = "%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s"


def main(arguments: list[str]) -> int:
    """Load the share, run plans. Return the exit code where that ends by itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when this process ends
    connection = Connection(int(arguments[0]))
    threading.Thread(target=_end_with, args=(connection.fileno(),), name="rank-0", daemon=True).start()
    task = connection.recv()
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT.format(rank=task.rank), stream=sys.stderr)
    from pagefleet_runtime.models.loading import load_rank
    from pagefleet_runtime.models.ranks import Member

    member = Member(connection, task, _end)
    try:
        executor = load_rank(task, member)
        gc.collect()
        gc.freeze()
        for plan in member.plans():
            executor.execute(plan)
    except ModelRefused as refused:
        member.fail(" ".join(str(refused).split()))
    except Exception as error:
        logging.getLogger(__name__).exception("the rank failed")
        member.fail(f"{type(error).__name__}: {error}")
    return 0


def _end_with(file: int) -> None:
    """Wait for the end of rank 0, and end: in the middle of a step it would wait for what never comes."""
    watch = select.poll()
    watch.register(file, select.POLLRDHUP)
    watch.poll()
    _end(1)


def _end(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
