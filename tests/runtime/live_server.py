"""The real server as a process of its own, on a free port of this machine, for end-to-end tests.

with live_server(model_directory, "--kv-cache-budget-blocks", "64") as server:
    answer = httpx2.get(server.url + "/v1/models")
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil

from pagefleet_contract.names import PATH_READY

# Loading torch and transformers twice on a busy machine takes long.
_READY_SECONDS = 180
_END_SECONDS = 30
_POLL_SECONDS = 0.05


@dataclass
class LiveServer:
    url: str  # without a slash at its end
    process: "subprocess.Popen[bytes]"
    log_path: Path

    @property
    def api(self) -> str:
        """What the openai client wants as base_url."""
        return f"{self.url}/v1"

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def status(self, path: str) -> int:
        """Return the status of a GET, 0 where nobody answers."""
        try:
            return httpx2.get(self.url + path, timeout=5).status_code
        except httpx2.TransportError:
            return 0

    def wait_until(self, holds: Callable[[], bool], seconds: float = _END_SECONDS) -> None:
        """Wait until something holds; fail with the server's log where it doesn't come about, or the server ends."""
        limit = time.monotonic() + seconds
        while True:
            code = self.process.poll()  # before the look: what came about just before the end has come about
            if holds():
                return
            assert code is None, f"the server ended with {code}:\n{self.log}"
            assert time.monotonic() < limit, f"it didn't come about in {seconds} s:\n{self.log}"
            time.sleep(_POLL_SECONDS)

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.status(PATH_READY) == 200, _READY_SECONDS)

    @contextmanager
    def frozen_engine(self) -> Iterator[None]:
        """Stop the engine's process for a while: what runs can't end before a test has looked at it."""
        engine = self.engine
        engine.suspend()
        try:
            yield
        finally:
            engine.resume()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_END_SECONDS)


@contextmanager
def live_server(
    model: Path | str,
    *flags: str,
    ready: bool = True,
    environment: Mapping[str, str] | None = None,
    most_files: int | None = None,
) -> Iterator[LiveServer]:
    """Start a server, wait until it is ready (unless `ready` is False: then until it listens), end it afterwards.

    Its log must not hold a traceback at the end, whatever the test did. `most_files` is its `ulimit -n`.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        started(model, flags, Path(folder), environment, most_files) as server,
    ):
        if ready:
            server.wait_ready()
        yield server
        if server.process.poll() is None:
            server.end()
        assert "Traceback" not in server.log, server.log


@contextmanager
def started(
    model: Path | str,
    flags: tuple[str, ...],
    folder: Path,
    environment: Mapping[str, str] | None,
    most_files: int | None,
) -> Iterator[LiveServer]:
    """Start a server and wait until it listens; kill it at the end, if it is still there."""
    log_path = folder / "server.log"
    command = [sys.executable, "-P", "-m", "pagefleet_runtime", str(model), "--port", "0", *flags]
    if most_files is not None:
        command = ["/bin/sh", "-c", f'ulimit -n {most_files} && exec "$@"', "sh", *command]
    # One thread each: tests share few cores, and tiny models need no more.
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=surroundings)
    try:
        server = LiveServer("", process, log_path)
        server.wait_until(lambda: "listening on " in server.log, _READY_SECONDS)
        found = re.search(r"listening on (http://\S+)", server.log)
        assert found is not None
        server.url = found[1]
        yield server
    finally:
        process.kill()
        process.wait()
