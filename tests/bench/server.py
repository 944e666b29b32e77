"""A live server for measuring: all threads, a known name, and its own page of truth."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from pagefleet_contract.names import PATH_STATE
from tests.bench.client import Endpoint
from tests.runtime.live_server import live_server

_NAME = "bench"
_OPERATOR_KEY = "bench-operator-key"


@dataclass(frozen=True, slots=True)
class BenchServer:
    url: str
    num_threads: int
    pid: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.of(self.url, _NAME)

    def state(self) -> dict[str, Any]:
        response = httpx2.get(self.url + PATH_STATE, headers={"authorization": f"Bearer {_OPERATOR_KEY}"})
        response.raise_for_status()
        page: dict[str, Any] = response.json()
        return page


@contextmanager
def bench_server(model_uri: str, num_threads: int, *flags: str) -> Iterator[BenchServer]:
    with TemporaryDirectory() as folder:
        key_file = Path(folder) / "operator-key"
        key_file.write_text(_OPERATOR_KEY)
        known = ("--served-name", _NAME, "--serving-operator-key-file", str(key_file))
        with live_server(model_uri, *known, *flags, environment={"OMP_NUM_THREADS": str(num_threads)}) as server:
            yield BenchServer(server.url, num_threads, server.process.pid)
