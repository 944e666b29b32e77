"""page_gather and page_scatter on a GPU, by the kernel of page_copy.

Importing this needs Triton; running it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1) and CPU tensors.
"""

from collections.abc import Sequence

import torch

from pagefleet_kernels.page_copy.gpu import as_words, copies_launch, page_indexes


def page_gather_triton(buffer: torch.Tensor, pages: Sequence[int], staging: torch.Tensor) -> None:
    """The GPU's page_gather: arguments as checked there. `staging` is device memory, from where one large copy goes to
    pinned memory of the host: single pages are too small for the link."""
    if pages:
        copies_launch(as_words(staging), as_words(buffer), None, page_indexes(pages, buffer.device), len(pages)).run()


def page_scatter_triton(staging: torch.Tensor, pages: Sequence[int], buffer: torch.Tensor) -> None:
    """The GPU's page_scatter: arguments as checked there."""
    if pages:
        copies_launch(as_words(buffer), as_words(staging), page_indexes(pages, buffer.device), None, len(pages)).run()
