"""The meaning of a quantised cache in plain PyTorch."""

import math

import torch

from pagefleet_kernels.quantised_kv.scales import CacheScales, Int8Scales

FP8_MAX = 448.0
# How much larger than what was measured a number may be before it is cut: e4m3 is as exact at 1/4 of its range.
_FP8_HEADROOM = 4.0


def quantise_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes of [..., size] and the float32 scale of each row. A row of zeros has scale 0."""
    exact = rows.float()
    scale = exact.abs().amax(-1) / 127.0
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    return torch.round(exact * inverse[..., None]).to(torch.int8), scale


def quantise_fp8(rows: torch.Tensor, scale: float) -> torch.Tensor:
    """Return e4m3 codes as uint8, rounded to nearest even; what is too large becomes the largest number."""
    scaled = (rows.float() / scale).clamp(-FP8_MAX, FP8_MAX)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def fitting_fp8_scale(largest_seen: float) -> float:
    """Return the scale of a layer whose keys, or values, are at most so large where they were measured: a power of two,
    which rounds nothing. Raises ValueError where that is no number."""
    if not math.isfinite(largest_seen):
        raise ValueError(f"the largest key or value of a layer is {largest_seen}; no scale fits that")
    return 2.0 ** math.ceil(math.log2(max(largest_seen, 2.0**-100) * _FP8_HEADROOM / FP8_MAX))


def dequantise_pages(
    key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both pages [N, block_size, H, size] in float32."""
    scales.check(key_pages)
    if isinstance(scales, Int8Scales):
        return (
            key_pages.float() * scales.keys.transpose(1, 2)[..., None],
            value_pages.float() * scales.values.transpose(1, 2)[..., None],
        )
    return (
        key_pages.view(torch.float8_e4m3fn).float() * scales.keys,
        value_pages.view(torch.float8_e4m3fn).float() * scales.values,
    )


def write_quantised_reference(
    key: torch.Tensor,  # [T, H, D]
    value: torch.Tensor,  # [T, H, Dv]
    key_pages: torch.Tensor,  # [N, block_size, H, D]
    value_pages: torch.Tensor,  # [N, block_size, H, Dv]
    scales: CacheScales,
    slots: torch.Tensor,  # [T], -1 is written nowhere
) -> None:
    scales.check(key_pages)
    block_size = key_pages.shape[1]
    real = slots >= 0
    pages, places = slots[real] // block_size, slots[real] % block_size
    if isinstance(scales, Int8Scales):
        for new, stored, stored_scales in ((key, key_pages, scales.keys), (value, value_pages, scales.values)):
            stored[pages, places], row_scales = quantise_int8(new[real])
            stored_scales[pages, :, places] = row_scales
        return
    key_pages[pages, places] = quantise_fp8(key[real], scales.keys)
    value_pages[pages, places] = quantise_fp8(value[real], scales.values)
