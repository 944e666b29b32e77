"""What the comparison with peers runs requests on: our live server, OpenVINO GenAI in a process of its own, llama.cpp's
server. Each tells when its tokens came and how much memory it holds."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import psutil

from tests.bench.client import Endpoint, Trace, run_workload
from tests.bench.llama_server import llama_server
from tests.bench.server import bench_server
from tests.bench.worker import ROOT, Worker, worker
from tests.bench.workloads import BenchRequest


class Subject(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def run(self, requests: Sequence[BenchRequest]) -> list[Trace]:
        """Run the requests at once. Raises RuntimeError where one of them failed."""
        ...


@dataclass(frozen=True, slots=True)
class ServedSubject:
    name: str
    pid: int
    endpoint: Endpoint

    def run(self, requests: Sequence[BenchRequest]) -> list[Trace]:
        return run_workload(self.endpoint, requests)


@dataclass(frozen=True, slots=True)
class PagefleetSubject(ServedSubject):
    model_directory: str  # converted, for peers that read safetensors


@dataclass(frozen=True, slots=True)
class OpenVinoSubject:
    name: str
    worker: Worker

    @property
    def pid(self) -> int:
        return self.worker.process.pid

    def run(self, requests: Sequence[BenchRequest]) -> list[Trace]:
        answers = self.worker.ask([asdict(request) for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            if len(answer["tokens"]) != request.num_output_tokens:
                raise RuntimeError(f"{len(answer['tokens'])} tokens came; {request.num_output_tokens} were asked")
        return [Trace(**answer) for answer in answers]


def resident_mib(pid: int) -> float:
    """Resident memory of a process and all below it; what they share counts in each."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 2**20


@contextmanager
def pagefleet(model_uri: str, dtype: str, num_threads: int, *flags: str) -> Iterator[PagefleetSubject]:
    with bench_server(
        model_uri, num_threads, "--model-dtype", dtype, "--kv-cache-budget-memory", "1Gi", *flags
    ) as server:
        endpoint = replace(server.endpoint, each_token=False)
        yield PagefleetSubject("pagefleet", server.pid, endpoint, server.state()["info"]["modelDirectory"])


@contextmanager
def openvino(python: Path, model: Path, num_threads: int) -> Iterator[OpenVinoSubject]:
    command: list[str | Path] = [python, ROOT / "tests/bench/openvino_worker.py", model, str(num_threads)]
    # Our packages must not come before its own.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with worker(command, environment) as started:
        yield OpenVinoSubject("OpenVINO GenAI", started)


@contextmanager
def llama_cpp(program: Path, model: Path, num_threads: int) -> Iterator[ServedSubject]:
    with llama_server(program, model, num_threads) as server:
        yield ServedSubject("llama.cpp", server.pid, server.endpoint)
