"""The meaning of gated_activation in plain PyTorch, in float32 or wider up to the last rounding."""

import torch
from torch.nn.functional import gelu, silu


def gated_activation_reference(gate_up: torch.Tensor, activation: str) -> torch.Tensor:  # [T, 2 N]
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=1)
    active = silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")
    return (active * up).to(gate_up.dtype)
