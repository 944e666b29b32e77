"""The numba kernels' signatures, and where numba keeps what it compiles. Importing this imports numba."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba import types

from pagefleet_kernels.kv_write import numba as kv_write
from pagefleet_kernels.paged_attention import numba as paged_attention


def compile_kernels(folder: Path) -> dict[str, Any]:
    """Return the kernels as C functions, by name. Raises OSError where the folder can't be written to."""
    attention = types.CPointer(numba.from_dtype(paged_attention.ARGUMENTS))
    writing = types.CPointer(numba.from_dtype(kv_write.ARGUMENTS))
    with _cache_in(folder):
        return {
            "attend_float32": _compiled(types.void(attention), paged_attention.attend_float32),
            "attend_bfloat16": _compiled(types.void(attention), paged_attention.attend_bfloat16),
            "combine": _compiled(types.void(attention), paged_attention.combine),
            "find_bad_slot": _compiled(types.int64(writing), kv_write.find_bad_slot),
            "write": _compiled(types.void(writing), kv_write.write),
        }


def _compiled(signature: Any, kernel: Callable[..., Any]) -> Any:
    return numba.cfunc(signature, nopython=True, cache=True, error_model="numpy")(kernel)


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """numba's one setting for it holds for the whole process; others that use numba get theirs back."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before
