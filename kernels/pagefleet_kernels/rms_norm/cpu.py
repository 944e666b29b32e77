"""rms_norm by the C++ library: two passes over a row that stays in the first cache."""

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, check_address, check_dense, check_type
from pagefleet_kernels.cpu.library import CpuLibrary


def rms_norm_cpu(
    library: CpuLibrary,
    x: torch.Tensor,  # [T, N]
    weights: torch.Tensor,  # [N]
    epsilon: float,
    residual: torch.Tensor | None,  # [T, N]
) -> torch.Tensor:
    """Arguments as checked by rms_norm. Raises ValueError where the library can't read them."""
    check_type("x", x)
    check_dense("x", x)
    check_address("x", x)
    if not weights.is_contiguous() or (residual is not None and not residual.is_contiguous()):
        raise ValueError("weights and residual must be contiguous")
    out = torch.empty(x.shape, dtype=x.dtype)
    library.functions.pagefleet_rms_norm(
        x.data_ptr(),
        x.stride(0) * x.element_size(),
        None if residual is None else residual.data_ptr(),
        weights.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        x.shape[1],
        TYPE_NUMBERS[x.dtype],
        epsilon,
        torch.get_num_threads(),
    )
    return out
