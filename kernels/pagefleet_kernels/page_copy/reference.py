"""The meaning of page_copy in plain PyTorch."""

from collections.abc import Sequence

import torch


def page_copy_reference(buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
    for source, target in copies:
        buffer[target].copy_(buffer[source])
