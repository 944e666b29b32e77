"""Decode steps on three paths, each in a process of its own: today's kernels, today's plain PyTorch, and the path that
the first server landed with, taken from the repository's history."""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from pagefleet_runtime.thread_settings import settle_threads
from tests.bench.worker import ROOT, Worker, worker

FIRST_COMMIT = "d5e898e"
_SOURCE_ROOTS = ("crds", "kernels", "operator", "runtime")


@contextmanager
def step_path(kernels: str, num_threads: int) -> Iterator[Worker]:
    """A worker for today's kernels (`auto`) or plain PyTorch (`plain`)."""
    with _step_worker(kernels, num_threads, os.environ.get("PYTHONPATH", "")) as started:
        yield started


@contextmanager
def first_path(num_threads: int) -> Iterator[Worker]:
    """A worker on the packages of FIRST_COMMIT."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(_archive())) as archive:
            archive.extractall(folder, filter="data")
        roots = os.pathsep.join(str(Path(folder) / root) for root in _SOURCE_ROOTS)
        with _step_worker("first", num_threads, roots) as started:
            yield started


def why_no_first_path() -> str | None:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "-e", f"{FIRST_COMMIT}^{{commit}}"], capture_output=True
    )
    return None if found.returncode == 0 else f"this checkout's history doesn't have {FIRST_COMMIT}; fetch it whole"


def _archive() -> bytes:
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", FIRST_COMMIT, *_SOURCE_ROOTS]
    return subprocess.run(command, check=True, capture_output=True).stdout


@contextmanager
def _step_worker(kernels: str, num_threads: int, python_path: str) -> Iterator[Worker]:
    environment = os.environ | {"PYTHONPATH": python_path, "OMP_NUM_THREADS": str(num_threads)}
    settle_threads(environment)  # here: the older path knows no such function
    with worker([sys.executable, "-m", "tests.bench.step_worker", kernels], environment) as started:
        yield started
