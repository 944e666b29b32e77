"""A linear layer on a CPU with its weight packed once, for the C++ library or for oneDNN."""

from collections.abc import Sequence
from typing import Literal

import torch

from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.gated_activation import Activation, gated_activation
from pagefleet_kernels.prepacked_linear.cpu import LibraryWeight, LinearCall, PackedWeight
from pagefleet_kernels.prepacked_linear.int8 import Int8Weight
from pagefleet_kernels.prepacked_linear.memory import WeightMemory
from pagefleet_kernels.prepacked_linear.onednn import OneDnnWeight

Quantization = Literal["none", "int8"]


class PrepackedLinear(torch.nn.Module):
    """y = x · weightᵀ + bias for x [..., in]. The weight given is read once and not kept.

    Several weights of one input become one layer whose outputs lie one behind the other. With `activation` the first
    half of these is a gate and the second its factor: y = activation(gate) * factor. With `library` it is C++ that
    multiplies, where the number of inputs is even, from `memory` that layers share; otherwise oneDNN. Only C++
    multiplies int8 codes (`quantization`).
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None] = (None,),
        library: CpuLibrary | None = None,
        memory: WeightMemory | None = None,
        activation: Activation | None = None,
        quantization: Quantization = "none",
    ) -> None:
        super().__init__()
        self.in_features = weights[0].shape[1]
        self.out_features = sum(weight.shape[0] for weight in weights)
        self.dtype = weights[0].dtype
        joined = weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])
        self._bias = _joined_bias(weights, biases)
        self._activation = activation
        self._packed: LibraryWeight | Int8Weight | OneDnnWeight
        if quantization == "int8":
            if library is None:
                raise ValueError("int8 codes are multiplied by the C++ library, and there is none")
            self._packed = Int8Weight(library, joined, memory or WeightMemory(), activation)
        elif library is not None and self.in_features % 2 == 0:
            self._packed = LibraryWeight(library, joined, memory or WeightMemory(), activation)
        else:
            self._packed = OneDnnWeight(joined)
        if self._bias is not None and not isinstance(self._packed, OneDnnWeight):
            self._bias = self._bias.float()

    @property
    def num_bytes(self) -> int:
        """What the weight and bias take; packing may pad it by a few rows."""
        bias_bytes = 0 if self._bias is None else self._bias.numel() * self._bias.itemsize
        if isinstance(self._packed, Int8Weight):
            return self._packed.num_bytes + bias_bytes
        return self.in_features * self.out_features * self.dtype.itemsize + bias_bytes

    def library_call(self) -> LinearCall | None:
        """Return the layer for other parts of the library to call; None where it isn't the library that multiplies."""
        return self._packed.call(self._bias) if isinstance(self._packed, PackedWeight) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self._packed.multiply(x, self._bias)
        if self._activation is None or not isinstance(self._packed, OneDnnWeight):
            return product
        gated = gated_activation(product.flatten(0, -2), self._activation)
        return gated.view(*product.shape[:-1], -1)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}"


def prepack_linear(layer: torch.nn.Linear, library: CpuLibrary | None = None) -> PrepackedLinear:
    return PrepackedLinear([layer.weight], [layer.bias], library)


def _joined_bias(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts)
