"""llama.cpp's server for one stream at a time, as its own documentation starts it, on a free port."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.bench.client import Endpoint

_READY_SECONDS = 120
_CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class LlamaServer:
    endpoint: Endpoint
    pid: int


@contextmanager
def llama_server(program: Path, model: Path, num_threads: int) -> Iterator[LlamaServer]:
    """Start the server on a GGUF and wait until it has loaded it; end it afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    threads = ("--threads", str(num_threads), "--threads-batch", str(num_threads))
    one_stream = ("--parallel", "1", "--ctx-size", str(_CONTEXT_TOKENS), "--no-webui")
    command: list[str | Path] = [
        program,
        "--model",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *threads,
        *one_stream,
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_ready(f"http://127.0.0.1:{port}/health", process)
            yield LlamaServer(Endpoint("127.0.0.1", port, model.stem, each_token=False), process.pid)
        finally:
            process.kill()
            process.wait()


def _wait_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    limit = time.monotonic() + _READY_SECONDS
    while not _is_ready(url):
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with {process.returncode} before it was ready")
        if time.monotonic() > limit:
            raise RuntimeError(f"llama-server was not ready after {_READY_SECONDS} s")
        time.sleep(0.1)


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.TransportError:
        return False
