"""Copy whole pages of the cache (copy-on-write)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pagefleet_kernels.pages import PageKernels


def page_copy(buffer: torch.Tensor, copies: Sequence[tuple[int, int]], *, kernels: "PageKernels") -> None:
    """Copy page `source` to page `target` for each (source, target) of `copies`, in order, in place.

    `buffer` is [num_blocks, bytes_per_page]: a page is every layer's keys and values, so a copy is one contiguous
    move. Raises ValueError where a page isn't there.
    """
    if buffer.dim() != 2:
        raise ValueError(f"the buffer has shape {list(buffer.shape)}; expected [blocks, bytes per page]")
    num_blocks = buffer.shape[0]
    for source, target in copies:
        if not (0 <= source < num_blocks and 0 <= target < num_blocks):
            raise ValueError(f"copy of page {source} to page {target}: the cache has pages 0 to {num_blocks - 1}")
    kernels.copy(buffer, copies)
