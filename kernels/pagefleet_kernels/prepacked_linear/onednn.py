"""Weights packed and multiplied by oneDNN, through functions of torch that are its own and private: `why_not_onednn`
tries them at start, and the caller keeps torch's layers where they fail."""

import torch
from torch.nn.functional import linear

# The number of rows that packing is told to expect: one order serves all, and a hint of 1 is slow from 8 rows on.
_ROWS_HINT = 512
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class OneDnnWeight:
    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")
        return result


def why_not_onednn(dtype: torch.dtype) -> str | None:
    """Return why oneDNN can't pack weights of this type on this machine, or None where it gives torch's results."""
    if dtype not in _TOLERANCE:
        return f"weights are {dtype}; packing takes {', '.join(map(str, _TOLERANCE))}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this build of torch has no oneDNN"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 96, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    try:
        packed = OneDnnWeight(weight)
        for shape in ((1, 96), (33, 96), (1, 5, 96)):
            x = torch.randn(shape, generator=generator).to(dtype)
            expected = linear(x.float(), weight.float(), bias.float())
            difference = (packed.multiply(x, bias).float() - expected).abs().max() / expected.abs().max()
            if not difference <= _TOLERANCE[dtype]:
                return f"packed layers differ from torch's own by {float(difference):.2g} of the largest value"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"this torch can't pack them: {error}"
    return None
