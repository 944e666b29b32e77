"""Rotate queries and keys by their positions and write keys and values into their slots, in one pass."""

import torch

from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.quantised_kv import CacheScales
from pagefleet_kernels.rotary_kv_write.cpu import rotary_kv_write_cpu
from pagefleet_kernels.rotary_kv_write.reference import rotary_kv_write_reference


def rotary_kv_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    *,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    scales: CacheScales | None = None,
    library: CpuLibrary | None = None,
) -> None:
    """Rotate `query` [T, Hq, D] in place, and write row i of the rotated `key` [T, H, D] and of `value` [T, H, Dv] to
    slot `slots[i]` of the pages, as kv_write does. `key` and `value` are left alone.

    `cosine` and `sine` [T, R] turn the first R numbers of a head, its first half against its second. With norm weights
    [D] float32, each head is divided by its root mean square and multiplied by them before that.
    Raises ValueError where shapes differ.
    """
    _check(query, key, value, cosine, sine, key_pages, value_pages, slots)
    for name, norm in (("query", query_norm), ("key", key_norm)):
        if norm is not None and (norm.shape != key.shape[2:] or norm.dtype != torch.float32):
            raise ValueError(f"the {name} norm is {norm.dtype} {list(norm.shape)}; expected float32 [{key.shape[2]}]")
    if library is not None:
        rotary_kv_write_cpu(
            library,
            query,
            key,
            value,
            cosine,
            sine,
            key_pages,
            value_pages,
            slots,
            query_norm,
            key_norm,
            epsilon,
            scales,
        )
    else:
        rotary_kv_write_reference(
            query, key, value, cosine, sine, key_pages, value_pages, slots, query_norm, key_norm, epsilon, scales
        )


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    for name, new, pages in (("key", key, key_pages), ("value", value, value_pages)):
        if new.dim() != 3 or pages.dim() != 4 or new.shape[1:] != pages.shape[2:]:
            raise ValueError(
                f"{name} has shape {list(new.shape)} and its pages {list(pages.shape)}; "
                "expected [tokens, heads, size] and [blocks, block size, heads, size] of the same heads and size"
            )
    tokens, _, size = key.shape
    if query.dim() != 3 or query.shape[0] != tokens or query.shape[2] != size:
        raise ValueError(f"query has shape {list(query.shape)}; expected [{tokens}, heads, {size}]")
    if cosine.dim() != 2 or cosine.shape != sine.shape or cosine.stride() != sine.stride():
        raise ValueError(f"cosine and sine have shapes {list(cosine.shape)} and {list(sine.shape)}; expected the same")
    if cosine.shape[0] != tokens or cosine.shape[1] > size or cosine.shape[1] % 2:
        raise ValueError(f"cosine has shape {list(cosine.shape)}; expected [{tokens}, an even number up to {size}]")
    if slots.dtype != torch.long or slots.shape != (tokens,) or value.shape[0] != tokens:
        raise ValueError(
            f"slots are {slots.dtype} {list(slots.shape)} and values {list(value.shape)}; expected one torch.long slot "
            f"and one value for each of {tokens} tokens"
        )
