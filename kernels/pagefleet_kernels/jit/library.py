"""Compile the numba kernels once, keep the result in a folder, run them on torch's own threads.

numba's own threads are not used: its OpenMP layer brings a second libgomp, whose threads and torch's would spin against
each other. No numba, or none of torch's threads, is an answer, not an exception: the caller falls back and says so.
"""

import ctypes
import hashlib
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

    Imports numba, which takes about a second; compiling takes some ten more, once.
    """
    try:
        # Looked up as torch's own code finds it, whatever the file is called, and whoever else brought another.
        pool = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return NumbaUnavailable("this torch has no OpenMP threads that the numba kernels could share")
    try:
        # Not at the top: numba is imported only where it is chosen.
        from numba.core.errors import NumbaError

        from pagefleet_kernels.jit.compiling import compile_kernels
    except ImportError as error:
        return NumbaUnavailable(f"numba can't be imported ({error}); pip install 'pagefleet[runtime]' brings it")
    try:
        kernels = compile_kernels(_folder(cache or default_cache()))
    except OSError as error:
        return NumbaUnavailable(f"numba's code can't be kept in {cache or default_cache()}: {error}")
    except NumbaError as error:
        return NumbaUnavailable(f"numba failed on the kernels: {str(error)[-2000:]}")
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
