"""Compile the numba kernels once, keep the result in a folder, run them on torch's own threads.

numba's own threads are not used: its OpenMP layer brings a second libgomp, whose threads and torch's would spin against
each other. No numba, or no libgomp of torch's, is an answer, not an exception: the caller falls back and says so.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pagefleet_kernels.cpu.library import default_cache

_SOURCES = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class NumbaLibrary:
    """The compiled kernels by name, and the pool that runs them."""

    kernels: Mapping[str, Any]
    pool: Callable[[int, int, int, int], None]

    def run(self, kernel: str, arguments: int, num_threads: int) -> None:
        """Call the kernel with the address of its arguments, in each of so many threads of torch's."""
        self.pool(self.kernels[kernel].address, arguments, num_threads, 0)

    def ask(self, kernel: str, arguments: int) -> int:
        """Return the kernel's answer."""
        answer: int = self.kernels[kernel].ctypes(arguments)
        return answer


@dataclass(frozen=True, slots=True)
class NumbaUnavailable:
    """Why there are no numba kernels, as a sentence for the log."""

    reason: str


def load_numba(cache: Path | None = None) -> NumbaLibrary | NumbaUnavailable:
    """Return the kernels, compiled into `cache` (None: the user's cache folder) if they aren't there.

    Imports numba, which takes about a second; compiling takes some twenty more, once.
    """
    assert torch.get_num_threads() >= 1  # so torch's libgomp is loaded
    try:
        openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return NumbaUnavailable(
            "this torch runs on other threads than libgomp's, which the numba kernels share with it"
        )
    try:
        # Not at the top: numba is imported only where it is chosen.
        from pagefleet_kernels.jit.compiling import compile_kernels
    except ImportError as error:
        return NumbaUnavailable(f"numba can't be imported ({error}); pip install 'pagefleet[runtime]' brings it")
    try:
        kernels = compile_kernels(_folder(cache or default_cache()))
    except OSError as error:
        return NumbaUnavailable(f"numba's code can't be kept in {cache or default_cache()}: {error}")
    pool = openmp.GOMP_parallel
    pool.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    pool.restype = None
    return NumbaLibrary(kernels, pool)


def _folder(cache: Path) -> Path:
    """Return the folder of these sources' code: numba itself looks at a kernel's own file, not at what that calls."""
    digest = hashlib.sha256()
    for source in sorted((*_SOURCES.glob("jit/*.py"), *_SOURCES.glob("*/numba.py"))):
        digest.update(str(source.relative_to(_SOURCES)).encode() + b"\0" + source.read_bytes())
    folder = cache / f"numba-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
