"""kv_write by the C++ library: one copy a head, converted or quantised on the way where the pages' type differs."""

import torch

from pagefleet_kernels.cpu.cache import PageWriter
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.quantised_kv import CacheScales


def kv_write_cpu(
    library: CpuLibrary,
    key: torch.Tensor,  # [T, H, D]
    value: torch.Tensor,  # [T, H, Dv]
    key_pages: torch.Tensor,  # [N, block_size, H, D]
    value_pages: torch.Tensor,  # [N, block_size, H, Dv]
    slots: torch.Tensor,  # [T]
    scales: CacheScales | None = None,
) -> None:
    """Arguments as checked by kv_write. Raises ValueError where a slot isn't in the pages; nothing is written then."""
    PageWriter(library, key_pages, value_pages, scales).write(key, value, slots.contiguous())
