"""Division by the root mean square, with the residual addition that comes before it in a transformer's layer."""

import torch

from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.rms_norm.cpu import rms_norm_cpu
from pagefleet_kernels.rms_norm.reference import rms_norm_reference


def rms_norm(
    x: torch.Tensor,
    weights: torch.Tensor,
    epsilon: float,
    *,
    residual: torch.Tensor | None = None,
    library: CpuLibrary | None = None,
) -> torch.Tensor:
    """Return `x` [T, N] divided by its root mean square and multiplied by `weights` [N] float32.

    With `residual` [T, N], x is added to it in place, and the sum takes the place of x.
    Raises ValueError where shapes or types differ.
    """
    if x.dim() != 2 or weights.shape != x.shape[1:] or weights.dtype != torch.float32:
        raise ValueError(
            f"x has shape {list(x.shape)} and the weights are {weights.dtype} {list(weights.shape)}; "
            "expected [tokens, size] and float32 [size]"
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise ValueError(f"the residual is {residual.dtype} {list(residual.shape)}; expected {x.dtype} {list(x.shape)}")
    if library is not None:
        return rms_norm_cpu(library, x, weights, epsilon, residual)
    return rms_norm_reference(x, weights, epsilon, residual)
