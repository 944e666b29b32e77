"""The product in the middle of a gated MLP: activation(gate) times the other half."""

from typing import Literal

import torch

from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.gated_activation.cpu import gated_activation_cpu
from pagefleet_kernels.gated_activation.reference import gated_activation_reference

Activation = Literal["silu", "gelu_tanh"]


def gated_activation(
    gate_up: torch.Tensor, activation: Activation, *, library: CpuLibrary | None = None
) -> torch.Tensor:
    """Return [T, N]: of `gate_up` [T, 2 N], the activated first half times the second. `gelu_tanh` is GELU by its
    approximation with tanh. Raises ValueError where the shape is another."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has shape {list(gate_up.shape)}; expected [tokens, an even number]")
    if library is not None:
        return gated_activation_cpu(library, gate_up, activation)
    return gated_activation_reference(gate_up, activation)
