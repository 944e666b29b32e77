"""page_gather and page_scatter by the C++ library: stores go past the caches, for what is moved isn't read soon."""

from array import array
from collections.abc import Sequence

import torch

from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.cpu.pages import move_pages


def page_gather_cpu(library: CpuLibrary, buffer: torch.Tensor, pages: Sequence[int], staging: torch.Tensor) -> None:
    """Arguments as checked by page_gather."""
    move_pages(library, staging, None, buffer, array("q", pages), len(pages))


def page_scatter_cpu(library: CpuLibrary, staging: torch.Tensor, pages: Sequence[int], buffer: torch.Tensor) -> None:
    """Arguments as checked by page_scatter."""
    move_pages(library, buffer, array("q", pages), staging, None, len(pages))
