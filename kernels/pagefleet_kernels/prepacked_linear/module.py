"""A linear layer on a CPU with its weight packed once. The functions are torch's own but private: `why_not_prepacked`
tries them at start, and the caller keeps its layers where they fail."""

from collections.abc import Sequence

import torch
from torch.nn.functional import linear

# The number of rows that packing is told to expect: one order serves all, and a hint of 1 is slow from 8 rows on.
_ROWS_HINT = 512
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class PrepackedLinear(torch.nn.Module):
    """y = x · weightᵀ + bias for x [..., in]. The weight given is read once and not kept.

    Several weights of one input become one layer whose outputs lie one behind the other.
    """

    def __init__(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None] = (None,)) -> None:
        super().__init__()
        self.in_features = weights[0].shape[1]
        self.out_features = sum(weight.shape[0] for weight in weights)
        self.dtype = weights[0].dtype
        self._packed = _pack(weights[0].detach() if len(weights) == 1 else torch.cat([w.detach() for w in weights]))
        self._bias = _joined_bias(weights, biases)

    @property
    def num_bytes(self) -> int:
        """What the weight and bias take; packing may pad it by a few rows."""
        size = self.dtype.itemsize
        return (self.in_features * self.out_features + (0 if self._bias is None else self.out_features)) * size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}"


def prepack_linear(layer: torch.nn.Linear) -> PrepackedLinear:
    return PrepackedLinear([layer.weight], [layer.bias])


def why_not_prepacked(dtype: torch.dtype) -> str | None:
    """Return why layers of this type can't be packed on this machine, or None where they give torch's own results."""
    if dtype not in _TOLERANCE:
        return f"weights are {dtype}; packing takes {', '.join(map(str, _TOLERANCE))}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this build of torch has no oneDNN"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 96, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    try:
        layer = PrepackedLinear([weight], [bias])
        for shape in ((1, 96), (33, 96), (1, 5, 96)):
            x = torch.randn(shape, generator=generator).to(dtype)
            expected = linear(x.float(), weight.float(), bias.float())
            difference = (layer(x).float() - expected).abs().max() / expected.abs().max()
            if not difference <= _TOLERANCE[dtype]:
                return f"packed layers differ from torch's own by {float(difference):.2g} of the largest value"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"this torch can't pack them: {error}"
    return None


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    return packed


def _joined_bias(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts)
