"""Move pages between the cache and a staging buffer, for swaps and transfers."""

from collections.abc import Sequence

import torch

from pagefleet_kernels.page_gather_scatter.reference import page_gather_reference, page_scatter_reference


def page_gather(buffer: torch.Tensor, pages: Sequence[int], staging: torch.Tensor) -> None:
    """Copy page `pages[i]` of `buffer` [num_blocks, bytes_per_page] to row i of `staging` [rows, bytes_per_page].

    Staging rows beyond the last page keep their bytes. Raises ValueError where shapes differ or a page isn't there.
    """
    _check(buffer, pages, staging)
    if buffer.device.type == "cuda":
        # Triton is imported where a GPU is used: CPU installations have none.
        from pagefleet_kernels.page_gather_scatter.gpu import page_gather_triton

        page_gather_triton(buffer, pages, staging)
    else:
        page_gather_reference(buffer, pages, staging)


def page_scatter(staging: torch.Tensor, pages: Sequence[int], buffer: torch.Tensor) -> None:
    """Copy row i of `staging` to page `pages[i]` of `buffer`, the inverse of `page_gather`. Pages may not repeat."""
    _check(buffer, pages, staging)
    if len(set(pages)) != len(pages):
        raise ValueError("a page is scattered to twice; which row stays would be left to chance")
    if buffer.device.type == "cuda":
        from pagefleet_kernels.page_gather_scatter.gpu import page_scatter_triton

        page_scatter_triton(staging, pages, buffer)
    else:
        page_scatter_reference(staging, pages, buffer)


def _check(buffer: torch.Tensor, pages: Sequence[int], staging: torch.Tensor) -> None:
    if buffer.dim() != 2 or staging.dim() != 2 or buffer.shape[1] != staging.shape[1] or buffer.dtype != staging.dtype:
        raise ValueError(
            f"the buffer is {buffer.dtype} {list(buffer.shape)} and the staging buffer {staging.dtype} "
            f"{list(staging.shape)}; expected pages of the same bytes"
        )
    if len(pages) > staging.shape[0]:
        raise ValueError(f"{len(pages)} pages don't fit into {staging.shape[0]} rows of staging; move them in parts")
    absent = [page for page in pages if not 0 <= page < buffer.shape[0]]
    if absent:
        raise ValueError(f"pages {absent} aren't there; the cache has pages 0 to {buffer.shape[0] - 1}")
