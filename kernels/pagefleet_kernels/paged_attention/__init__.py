"""Attention of packed queries to keys and values that lie in pages."""

from typing import TYPE_CHECKING

import torch

from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.quantised_kv import CacheScales

if TYPE_CHECKING:
    from pagefleet_kernels.pages import PageKernels

__all__ = ["AttentionBatch", "AttentionCall", "BatchRow", "paged_attention"]


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    scales: CacheScales | None = None,
    kernels: "PageKernels",
) -> torch.Tensor:
    """Return [T, Hq, Dv]: for each packed query [T, Hq, D] its causal attention to its row's context in the pages.

    Pages are views [num_blocks, block_size, H, D] (values Dv) of any page stride; inside a page they are contiguous.
    Query head h reads key-value head h // (Hq / H). `window` is the number of positions seen, the own one included.
    `softcap` c turns a scaled score s into c·tanh(s / c). `sinks` [Hq] are extra scores that take part in the softmax
    and carry no value. With `scales` pages hold codes, as quantised_kv has them. What lies in slots outside a row's
    context is never seen, NaN included. Raises ValueError where shapes don't fit.
    """
    call = AttentionCall(query, key_pages, value_pages, batch, scale, window, softcap, sinks, scales)
    _check(call)
    return kernels.attend(call)


def _check(call: AttentionCall) -> None:
    query, key_pages, value_pages = call.query, call.key_pages, call.value_pages
    if query.dim() != 3 or query.shape[0] != call.batch.num_tokens:
        raise ValueError(f"query has shape {list(query.shape)}; expected [{call.batch.num_tokens}, heads, size]")
    if key_pages.dim() != 4 or value_pages.dim() != 4 or key_pages.shape[:3] != value_pages.shape[:3]:
        raise ValueError(
            f"key pages have shape {list(key_pages.shape)} and value pages {list(value_pages.shape)}; "
            "expected [blocks, block size, heads, size] that differ in size only"
        )
    _, block_size, num_kv_heads, key_size = key_pages.shape
    if block_size != call.batch.block_size:
        raise ValueError(f"pages hold {block_size} tokens but the batch was laid out for {call.batch.block_size}")
    if query.shape[2] != key_size or query.shape[1] % num_kv_heads:
        raise ValueError(
            f"query has {query.shape[1]} heads of {query.shape[2]}, keys {num_kv_heads} of {key_size}; "
            "sizes must be equal and the query's heads a multiple of the keys'"
        )
    for name, pages in (("key", key_pages), ("value", value_pages)):
        if pages.stride()[1:] != (pages.shape[2] * pages.shape[3], pages.shape[3], 1):
            raise ValueError(f"{name} pages have strides {pages.stride()}; inside a page they must be contiguous")
    if call.window is not None and call.window < 1:
        raise ValueError(f"window is {call.window}; it must be at least 1, or None for full attention")
    if call.sinks is not None and call.sinks.shape != (query.shape[1],):
        raise ValueError(f"sinks have shape {list(call.sinks.shape)}; expected one for each of {query.shape[1]} heads")
    if call.scales is not None:
        call.scales.check(key_pages)
    elif key_pages.dtype in (torch.int8, torch.uint8):
        raise ValueError(f"pages hold codes of {key_pages.dtype}, which mean nothing without scales")
