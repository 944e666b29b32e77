"""Starts the server for the demo as a person would, and asks its admin pages. Its log goes to the terminal."""

import json
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from pagefleet_contract.names import PATH_READY, PATH_STATE

LONGEST_START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class DemoServer:
    url: str
    model: str
    operator_key: str
    client: AsyncOpenAI

    def state(self) -> dict[str, Any]:
        """The engine's own page of truth, which answers the operator's key only."""
        return self._json(PATH_STATE, None)

    def tokenize(self, text: str) -> list[int]:
        tokens: list[int] = self._json("/tokenize", {"prompt": text})["tokens"]
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        return str(self._json("/detokenize", {"tokens": list(tokens)})["prompt"])

    def _json(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps({"model": self.model, **body}).encode(),
            headers={"authorization": f"Bearer {self.operator_key}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the server ended with code {process.returncode}; its message stands above")
        try:
            with urllib.request.urlopen(url + PATH_READY, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    sys.exit(f"the server was not ready within {LONGEST_START_SECONDS} s; see its log above")


@contextmanager
def demo_server(model_uri: str) -> Iterator[DemoServer]:
    """Run `pagefleet serve MODEL_URI` on a free port of loopback until the block ends."""
    model, operator_key = "smollm2", secrets.token_urlsafe()
    with tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "operator-key"
        key_file.write_text(operator_key)
        port = _free_port()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pagefleet_runtime", model_uri, "--served-name", model),
                *("--port", str(port), "--serving-operator-key-file", str(key_file)),
                *("--kv-cache-budget-memory", "1Gi"),
            ]
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(url, process)
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            yield DemoServer(url, model, operator_key, client)
        finally:
            process.terminate()
            process.wait()
