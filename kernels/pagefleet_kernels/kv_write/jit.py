"""kv_write by numba: the launch of the kernel that copies heads to their slots."""

import ctypes

import numpy as np
import torch

from pagefleet_kernels.cpu.arguments import check_address, check_dense
from pagefleet_kernels.cpu.cache import Rotation
from pagefleet_kernels.jit.library import NumbaLibrary

# Waking a second thread costs more than to copy so many tokens.
_ONE_THREAD_TOKENS = 64


class NumbaWriter:
    """Writes keys and values to one layer's pages. What is said of the pages is said once."""

    def __init__(self, library: NumbaLibrary, key_pages: torch.Tensor, value_pages: torch.Tensor) -> None:
        """Pages are [num_blocks, block_size, heads, size] of one type. Raises ValueError."""
        # Not at the top: it imports numba.
        from pagefleet_kernels.kv_write.numba import ARGUMENTS

        for name, pages in (("key pages", key_pages), ("value pages", value_pages)):
            check_dense(name, pages)
            check_address(name, pages)
        self._library = library
        self._dtype = key_pages.dtype
        self._pages = key_pages, value_pages
        self._counter = ctypes.c_int64()
        self._arguments = np.zeros((), ARGUMENTS)
        for name, value in {
            "key_pages": key_pages.data_ptr(),
            "value_pages": value_pages.data_ptr(),
            "counter": ctypes.addressof(self._counter),
            "heads": key_pages.shape[2],
            "block_size": key_pages.shape[1],
            "num_slots": key_pages.shape[0] * key_pages.shape[1],
            "key_bytes": key_pages.shape[3] * key_pages.itemsize,
            "value_bytes": value_pages.shape[3] * value_pages.itemsize,
            "key_page_strides": _byte_strides(key_pages),
            "value_page_strides": _byte_strides(value_pages),
        }.items():
            self._arguments[name] = value

    def write(
        self,
        key: torch.Tensor,  # [T, H, D]
        value: torch.Tensor,  # [T, H, Dv]
        slots: torch.Tensor,  # [T] torch.long
        rotation: Rotation | None = None,
    ) -> None:
        """Raises ValueError where a slot isn't in the pages; nothing is written then."""
        assert rotation is None, "fused layers need the C++ kernels"
        key, value, slots = self._converted(key), self._converted(value), slots.contiguous()
        arguments = self._arguments
        arguments["key"], arguments["value"], arguments["slots"] = key.data_ptr(), value.data_ptr(), slots.data_ptr()
        arguments["key_strides"], arguments["value_strides"] = _byte_strides(key), _byte_strides(value)
        arguments["tokens"] = len(slots)
        bad = self._library.ask("find_bad_slot", arguments.ctypes.data)
        if bad >= 0:
            raise ValueError(
                f"slot {int(slots[bad])} of token {bad} isn't there; the pages have slots 0 to "
                f"{arguments['num_slots'] - 1}"
            )
        self._counter.value = 0
        num_threads = 1 if len(slots) <= _ONE_THREAD_TOKENS else torch.get_num_threads()
        self._library.run("write", arguments.ctypes.data, num_threads)

    def _converted(self, new: torch.Tensor) -> torch.Tensor:
        converted = new.to(self._dtype)
        return converted if converted.stride(-1) == 1 else converted.contiguous()


def _byte_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride * tensor.itemsize for stride in tensor.stride()[:-1])
