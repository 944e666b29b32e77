"""The meaning of rotary_kv_write in plain PyTorch, in float32 up to the last rounding."""

import torch

from pagefleet_kernels.kv_write.reference import kv_write_reference
from pagefleet_kernels.quantised_kv import CacheScales, write_quantised_reference


def rotary_kv_write_reference(
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
    query.copy_(_rotated(query.float(), cosine.float(), sine.float(), query_norm, epsilon))
    rotated = _rotated(key.float(), cosine.float(), sine.float(), key_norm, epsilon)
    if scales is None:
        kv_write_reference(rotated, value, key_pages, value_pages, slots)
    else:
        write_quantised_reference(rotated, value, key_pages, value_pages, scales, slots)


def _rotated(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, norm: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * norm
    size = cosine.shape[1]
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine[:, None] + torch.cat([-second, first], dim=-1) * sine[:, None]
    return torch.cat([turned, rest], dim=-1)
