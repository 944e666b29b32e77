"""What is done to a model so that a CPU runs it fast: fused layers where its family is known, packed linear layers."""

from typing import Any

import torch

from pagefleet_kernels.choice import Kernels
from pagefleet_runtime.models.fused import fuse_layers
from pagefleet_runtime.models.linears import LinearPacker
from pagefleet_runtime.models.sharded_layers import is_hooked, replace_hooked_layers


def speed_up(model: Any, kernels: Kernels) -> tuple[str, ...]:
    """Replace modules of the model, which is on our attention; return what was done beside the kernels' own, in words.

    Memory doesn't grow, but by the head's weight where it was the embedding's, too.
    """
    replace_hooked_layers(model)
    packer = LinearPacker(kernels)
    fused = kernels.library is not None and fuse_layers(model, kernels.library, packer)
    if packer.packs:
        _pack_linears(model, packer)
    return ("fused layers",) if fused else ()


def _pack_linears(model: Any, packer: LinearPacker) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Exactly: what a subclass or a hook does beside the product would be lost.
            if type(child) is torch.nn.Linear and not is_hooked(child):
                setattr(module, name, packer.join([child]))
