"""`python -m tests.router.fixed_pods CONFIG PODS`: the router's program with pods from a file instead of the API."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.listening import bound_socket, raise_file_limit
from pagefleet_router.kubernetes_api import Event, Listed
from pagefleet_router.main import load_config
from pagefleet_router.serving import serve_with


class FixedPods:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def list(self) -> Listed:
        return Listed(json.loads(self._path.read_text()), "1")

    async def watch(self, resource_version: str, tell: Callable[[Event], None]) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


async def _connect() -> FixedPods:
    return FixedPods(Path(sys.argv[2]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    listener = bound_socket("127.0.0.1", 0)
    serving = serve_with(_connect, load_config(Path(sys.argv[1])), ApiKeys(None), listener, raise_file_limit())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(serving))
