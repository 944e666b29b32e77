"""page_copy by the C++ library: every thread copies its share of each page, in the order of the copies."""

from array import array
from collections.abc import Sequence

import torch

from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.cpu.pages import move_pages


def page_copy_cpu(library: CpuLibrary, buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """Arguments as checked by page_copy."""
    sources = array("q", (source for source, _ in copies))
    targets = array("q", (target for _, target in copies))
    move_pages(library, buffer, targets, buffer, sources, len(copies))
