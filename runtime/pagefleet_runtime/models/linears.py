"""Linear layers as a CPU multiplies them fastest: packed, and those of one input joined to one."""

from collections.abc import Sequence

import torch
from torch.nn.functional import linear

from pagefleet_kernels.choice import Kernels
from pagefleet_kernels.decoder_layer import LayerMemory
from pagefleet_kernels.gated_activation import Activation, gated_activation
from pagefleet_kernels.prepacked_linear import MOST_INPUTS, PrepackedLinear, WeightMemory
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.sharded_layers import RowParallelLinear


class LinearPacker:
    """Makes layers by the kernels' choice. All that one packer makes share its memory; `layer_memory` is the work space
    of those that are joined further."""

    def __init__(self, kernels: Kernels) -> None:
        self._kind = kernels.linears
        self._library = kernels.library if kernels.linears in ("library", "int8") else None
        self._quantization = kernels.quantization
        self._memory = WeightMemory()
        self.layer_memory = LayerMemory()

    @property
    def packs(self) -> bool:
        return self._kind != "torch"

    def pack(self, layer: torch.nn.Module) -> torch.nn.Module:
        """Return the layer by the choice; one of a rank's share stays one."""
        if isinstance(layer, RowParallelLinear):
            return RowParallelLinear(self.pack(layer.linear), layer.bias)
        assert isinstance(layer, torch.nn.Linear)
        return self.join([layer])

    def join(self, layers: Sequence[torch.nn.Linear], activation: Activation | None = None) -> torch.nn.Module:
        """Return one layer whose outputs are those of `layers`, one behind the other; with an activation, of a gate
        and its factor: activation(gate) * factor. Raises ModelRefused where int8 codes can't be multiplied."""
        inputs = layers[0].weight.shape[1]  # a rank's share of them
        if self._quantization == "int8" and inputs > MOST_INPUTS:
            raise ModelRefused(
                f"model.quantization is int8, and a linear layer has {inputs} inputs; products of int8 codes are "
                f"summed for up to {MOST_INPUTS}; set model.quantization to none"
            )
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        if not self.packs:
            return _JoinedLinear(weights, biases, activation)
        return PrepackedLinear(weights, biases, self._library, self._memory, activation, self._quantization)


class _JoinedLinear(torch.nn.Module):
    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        activation: Activation | None,
    ) -> None:
        super().__init__()
        self._activation = activation
        self.register_buffer("weight", torch.cat([weight.detach() for weight in weights]), persistent=False)
        bias = None
        if any(bias is not None for bias in biases):
            pairs = zip(weights, biases, strict=True)
            bias = torch.cat([w.new_zeros(w.shape[0]) if b is None else b.detach() for w, b in pairs])
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = linear(x, self.weight, self.bias)  # type: ignore[arg-type]
        return product if self._activation is None else gated_activation(product, self._activation)
