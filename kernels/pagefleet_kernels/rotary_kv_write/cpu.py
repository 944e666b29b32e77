"""rotary_kv_write by the C++ library: queries and keys are read once, and the rotated keys never stand alone."""

import torch

from pagefleet_kernels.cpu.cache import PageWriter, Rotation
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.quantised_kv import CacheScales


def rotary_kv_write_cpu(
    library: CpuLibrary,
    query: torch.Tensor,  # [T, Hq, D]
    key: torch.Tensor,  # [T, H, D]
    value: torch.Tensor,  # [T, H, Dv]
    cosine: torch.Tensor,  # [T, R]
    sine: torch.Tensor,  # [T, R]
    key_pages: torch.Tensor,  # [N, block_size, H, D]
    value_pages: torch.Tensor,  # [N, block_size, H, Dv]
    slots: torch.Tensor,  # [T]
    query_norm: torch.Tensor | None,  # [D]
    key_norm: torch.Tensor | None,  # [D]
    epsilon: float,
    scales: CacheScales | None = None,
) -> None:
    """Arguments as checked by rotary_kv_write. Raises ValueError where a slot isn't in the pages."""
    rotation = Rotation(query, cosine, sine, query_norm, key_norm, epsilon)
    PageWriter(library, key_pages, value_pages, scales).write(key, value, slots.contiguous(), rotation)
