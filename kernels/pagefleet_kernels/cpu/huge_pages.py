"""Ask the system for 2 MiB pages, from which a CPU reads a KV pool up to twice as fast. Whether it gives them is its
own matter."""

import ctypes
import os
from pathlib import Path

import torch

_ADVICE = 14  # MADV_HUGEPAGE of Linux
_SIZE = 2 << 20
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def ask_for_huge_pages(tensor: torch.Tensor) -> str | None:
    """Advise the system to back the tensor's memory with 2 MiB pages; return why it can't, or None.

    It counts for memory that nobody has touched yet: call it right after the allocation.
    """
    if tensor.device.type != "cpu":
        return f"the memory lies on {tensor.device}"
    if not _SETTING.exists():
        return "this system has no transparent 2 MiB pages"
    setting = _SETTING.read_text().strip()
    if "[never]" in setting:
        return f"the node forbids transparent 2 MiB pages ({_SETTING}: {setting})"
    first = -(-tensor.data_ptr() // _SIZE) * _SIZE
    last = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // _SIZE * _SIZE
    if last <= first:
        return "the memory is smaller than 2 MiB"
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if madvise(first, last - first, _ADVICE) != 0:
        return f"madvise failed: {os.strerror(ctypes.get_errno())}"
    return None
