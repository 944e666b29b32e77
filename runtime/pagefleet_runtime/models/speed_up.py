"""What is done to a model so that a CPU runs it fast: fused layers where its family is known, packed linear layers."""

from typing import Any

import torch

from pagefleet_kernels.choice import Kernels
from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.prepacked_linear import prepack_linear
from pagefleet_runtime.models.fused import fuse_layers


def speed_up(model: Any, kernels: Kernels) -> tuple[str, ...]:
    """Replace modules of the model, which is on our attention; return what was done beside the kernels' own, in words.

    Memory doesn't grow, but by the head's weight where it was the embedding's, too.
    """
    fused = fuse_layers(model, kernels)
    if kernels.linears != "torch":
        _pack_linears(model, kernels.library if kernels.linears == "library" else None)
    return ("fused layers",) if fused else ()


def _pack_linears(model: Any, library: CpuLibrary | None) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Exactly: what a subclass does beside its product would be lost.
            if type(child) is torch.nn.Linear:
                setattr(module, name, prepack_linear(child, library))
