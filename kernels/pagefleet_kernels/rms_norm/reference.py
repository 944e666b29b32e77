"""The meaning of rms_norm in plain PyTorch."""

import torch


def rms_norm_reference(
    x: torch.Tensor,  # [T, N]
    weights: torch.Tensor,  # [N]
    epsilon: float,
    residual: torch.Tensor | None,  # [T, N]
) -> torch.Tensor:
    if residual is not None:
        x = residual.add_(x)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon) * weights).to(x.dtype)
