"""`python -m pagefleet_local.node run | stop`: the process node, and the end of what it left running."""

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from pagefleet_local.node.leftovers import end_all
from pagefleet_local.node.node import Node
from pagefleet_local.node.options import RunOptions, parse

_log = logging.getLogger("pagefleet_local.node")


def main() -> int:
    options = parse(sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        with _alone(options.state):
            if isinstance(options, RunOptions):
                _run(options)
            else:
                print(f"{end_all(options.state, options.grace_seconds)} processes ended")
    except BlockingIOError:
        print(f"a node runs with the folder {options.state}; stop it first", file=sys.stderr)
        return 1
    return 0


def _run(options: RunOptions) -> None:
    _log.warning(
        "this node isolates nothing: pods run as processes of user %d on this machine, with its files and network; "
        "security contexts and network policies are not enforced",
        os.getuid(),
    )
    _raise_file_limit()
    asyncio.run(Node(options).run())


def _raise_file_limit() -> None:
    """Every forwarded connection holds two files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold the state folder; the kernel lets it go when the program ends. Raises BlockingIOError where it is held."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


if __name__ == "__main__":
    sys.exit(main())
