"""gated_activation by the C++ library: one pass, activation and product in registers."""

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, check_address, check_dense, check_type
from pagefleet_kernels.cpu.library import CpuLibrary

ACTIVATION_NUMBERS = {"silu": 0, "gelu_tanh": 1}  # Activation of cpu/activation.h


def gated_activation_cpu(library: CpuLibrary, gate_up: torch.Tensor, activation: str) -> torch.Tensor:  # [T, 2 N]
    """Arguments as checked by gated_activation. Raises ValueError where the library can't read them."""
    check_type("gate_up", gate_up)
    check_dense("gate_up", gate_up)
    check_address("gate_up", gate_up)
    size = gate_up.shape[1] // 2
    out = torch.empty(gate_up.shape[0], size, dtype=gate_up.dtype)
    library.functions.pagefleet_gated_activation(
        gate_up.data_ptr(),
        gate_up.stride(0) * gate_up.element_size(),
        out.data_ptr(),
        gate_up.shape[0],
        size,
        TYPE_NUMBERS[gate_up.dtype],
        ACTIVATION_NUMBERS[activation],
        torch.get_num_threads(),
    )
    return out
