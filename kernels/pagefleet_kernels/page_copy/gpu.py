"""page_copy on a GPU: the launch of the Triton kernel, one for each group of independent copies.

Importing this needs Triton; running it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1) and CPU tensors.
"""

from collections.abc import Sequence

import torch
import triton

from pagefleet_kernels.launch import Launch
from pagefleet_kernels.page_copy.triton import copy_pages_kernel
from pagefleet_kernels.page_copy.waves import PageIndexes, copy_waves

WORDS_PER_PROGRAM = 4096
NUM_WARPS = 4


def page_copy_triton(buffer: torch.Tensor, copies: Sequence[PageIndexes]) -> None:
    """The GPU's page_copy: arguments as checked there; copies that don't meet run at the same time."""
    words = as_words(buffer)
    for wave in copy_waves(copies):
        pages = page_indexes([[source for source, _ in wave], [target for _, target in wave]], buffer.device)
        copies_launch(words, words, pages[1], pages[0], len(wave)).run()


def copies_launch(
    target: torch.Tensor,
    source: torch.Tensor,
    target_pages: torch.Tensor | None,
    source_pages: torch.Tensor | None,
    num_copies: int,
) -> Launch:
    """Return the launch that copies pages between [N, words] and [M, words]; the indexes are on the device, copies of
    a negative one are skipped."""
    arguments = {
        "target": target,
        "source": source,
        "target_pages": target_pages,
        "source_pages": source_pages,
        "num_vectors": source.shape[1] // 4,
        "target_stride": target.stride(0) // 4,
        "source_stride": source.stride(0) // 4,
        "WORDS": WORDS_PER_PROGRAM,
    }
    grid = (num_copies, triton.cdiv(source.shape[1], WORDS_PER_PROGRAM))
    return Launch(copy_pages_kernel, grid, arguments, {"num_warps": NUM_WARPS})


def as_words(buffer: torch.Tensor) -> torch.Tensor:
    """View pages [N, bytes] as 4-byte words. Raises ValueError where a page isn't a multiple of 16 bytes."""
    page_bytes = buffer.shape[1] * buffer.element_size()
    if page_bytes % 16 or buffer.stride(1) != 1 or buffer.stride(0) * buffer.element_size() % 16:
        raise ValueError(
            f"a page has {page_bytes} bytes and strides {buffer.stride()}; "
            "it must be contiguous, and begin and end at multiples of 16 bytes"
        )
    return buffer.view(torch.int32)


def page_indexes(pages: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Move lists of page indexes to the device as int32, without waiting for it."""
    host = torch.tensor(pages, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
