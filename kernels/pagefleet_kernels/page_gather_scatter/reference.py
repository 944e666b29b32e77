"""The meaning of page_gather and page_scatter in plain PyTorch."""

from collections.abc import Sequence

import torch


def page_gather_reference(buffer: torch.Tensor, pages: Sequence[int], staging: torch.Tensor) -> None:
    for row, page in enumerate(pages):
        staging[row].copy_(buffer[page])


def page_scatter_reference(staging: torch.Tensor, pages: Sequence[int], buffer: torch.Tensor) -> None:
    for row, page in enumerate(pages):
        buffer[page].copy_(staging[row])
