"""Write new keys and values into their slots of the paged cache."""

import torch

from pagefleet_kernels.kv_write.reference import kv_write_reference
from pagefleet_kernels.quantised_kv import CacheScales, write_quantised_reference


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    *,
    scales: CacheScales | None = None,
) -> None:
    """Write row i of `key` [T, H, D] and `value` [T, H, Dv] to slot `slots[i]` of the pages, in place.

    Slot s is row s % block_size of page s // block_size; pages are views [num_blocks, block_size, H, D] of any
    strides. Values are converted to the pages' dtype; with `scales` pages hold codes, as quantised_kv has them. Slots
    may not repeat. Raises ValueError where shapes differ.
    """
    check_kv_write(key, value, key_pages, value_pages, slots)
    if scales is None:
        kv_write_reference(key, value, key_pages, value_pages, slots)
    else:
        write_quantised_reference(key, value, key_pages, value_pages, scales, slots)


def check_kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Raise ValueError where shapes differ."""
    for name, new, pages in (("key", key, key_pages), ("value", value, value_pages)):
        if new.dim() != 3 or pages.dim() != 4 or new.shape[1:] != pages.shape[2:]:
            raise ValueError(
                f"{name} has shape {list(new.shape)} and its pages {list(pages.shape)}; "
                "expected [tokens, heads, size] and [blocks, block size, heads, size] of the same heads and size"
            )
        if new.shape[0] != slots.shape[0]:
            raise ValueError(f"{name} has {new.shape[0]} tokens but there are {slots.shape[0]} slots")
    if slots.dtype != torch.long or slots.dim() != 1:
        raise ValueError(f"slots have dtype {slots.dtype} and {slots.dim()} dimensions; expected one of torch.long")
