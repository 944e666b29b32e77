"""Triton's interpreter for tests: a child process in which the kernels run on CPU tensors.

Triton reads TRITON_INTERPRET when a kernel is defined, and its own library is full of kernels, so the variable must be
set before the first import. A process of its own leaves pytest's, which compiles the same kernels, as it is.
"""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Interpreter:
    """Call `run(function, argument)`: the function runs in the child, which imports its module there."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_interpret)

    def run(self, function: Callable[[Argument], Result], argument: Argument) -> Result:
        return self._pool.submit(function, argument).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
