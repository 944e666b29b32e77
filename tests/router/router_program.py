"""The router as a process of its own, for tests of its life and against real engines."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

from pagefleet_contract.names import PATH_READY
from pagefleet_contract.router import RouterConfig
from tests.router.pods import pod

_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.02


@dataclass
class RouterProgram:
    process: "subprocess.Popen[bytes]"
    log_path: Path
    url: str = ""

    @property
    def api(self) -> str:
        """What the openai client wants as base_url."""
        return f"{self.url}/v1"

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def status(self, path: str) -> int:
        """Return the status of a GET, 0 where nobody answers."""
        try:
            return httpx2.get(self.url + path, timeout=5).status_code
        except httpx2.TransportError:
            return 0

    def wait_until(
        self, holds: Callable[[], bool], seconds: float = _PATIENCE_SECONDS, found: Callable[[], str] = lambda: ""
    ) -> None:
        """Fails with the log, and with what is found when time has run out."""
        limit = time.monotonic() + seconds
        while True:
            code = self.process.poll()  # before the look: what came about just before the end has come about
            if holds():
                return
            assert code is None, f"the router ended with {code}:\n{self.log}"
            assert time.monotonic() < limit, f"it didn't come about in {seconds} s: {found()}\n{self.log}"
            time.sleep(_POLL_SECONDS)

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.status(PATH_READY) == 200)


def config_file(folder: Path, **settings: Any) -> Path:
    config = RouterConfig(**{"service_name": "chat", "namespace": "default", "served_name": "tiny", **settings})
    path = folder / "router.json"
    path.write_text(config.model_dump_json(by_alias=True))
    return path


@contextmanager
def router_program(
    folder: Path, *command: str, environment: Mapping[str, str] | None = None
) -> Iterator[RouterProgram]:
    """Run a module with arguments; wait until it listens. Its log must not hold a traceback at the end."""
    log_path = folder / "router.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
    router = RouterProgram(process, log_path)
    try:
        router.wait_until(lambda: "listening on " in router.log)
        found = re.search(r"listening on (http://\S+)", router.log)
        assert found is not None
        router.url = found[1]
        yield router
        assert "Traceback" not in router.log, router.log
    finally:
        process.kill()
        process.wait()


@contextmanager
def router_before(folder: Path, addresses: list[str], port: int, **settings: Any) -> Iterator[RouterProgram]:
    """Run a router that knows pods at these addresses, and wait until it is ready."""
    pods_path = folder / "pods.json"
    pods_path.write_text(json.dumps([pod(f"chat-{number}", address) for number, address in enumerate(addresses)]))
    config = config_file(folder, engine_port=port, **settings)
    with router_program(folder, "tests.router.fixed_pods", str(config), str(pods_path)) as router:
        router.wait_ready()
        yield router
