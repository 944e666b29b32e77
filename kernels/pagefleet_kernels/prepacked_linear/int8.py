"""Weights as int8 codes, packed and multiplied by the C++ library: a row's result depends on that row alone, to the
bit."""

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.gated_activation import Activation
from pagefleet_kernels.prepacked_linear.cpu import PackedWeight
from pagefleet_kernels.prepacked_linear.memory import WeightMemory
from pagefleet_kernels.prepacked_linear.reference import LARGEST_CODE, QuantisedRows, quantise_rows, rotated

# So many products of two codes fit into the int32 that sums them.
MOST_INPUTS = (2**31 - 1) // LARGEST_CODE**2
# Outputs that are quantised at a time: their float32 copy is all that packing takes beside the codes.
_CHUNK_OUTPUTS = 256


class Int8Weight(PackedWeight):
    """Codes, and a scale for each output."""

    def __init__(
        self, library: CpuLibrary, weight: torch.Tensor, memory: WeightMemory, activation: Activation | None = None
    ) -> None:
        """`weight` is [out, in]; its type is what goes in and comes out. With an activation its first half is the
        gate, its second the factor. Raises ValueError."""
        if weight.dtype not in TYPE_NUMBERS or weight.dim() != 2 or weight.shape[1] > MOST_INPUTS:
            raise ValueError(
                f"the weight is {weight.dtype} {list(weight.shape)}; int8 codes are made of "
                f"{', '.join(map(str, TYPE_NUMBERS))} with at most {MOST_INPUTS} inputs"
            )
        parts = weight.chunk(1 if activation is None else 2)
        outputs, inputs = parts[0].shape
        functions, threads = library.functions, torch.get_num_threads()
        packed = memory.take(len(parts) * functions.pagefleet_int8_packed_words(inputs, outputs))
        for index, part in enumerate(parts):
            begin = packed.data_ptr() + 4 * index * functions.pagefleet_int8_panel_words(inputs)
            quantised = _quantised(part)
            addresses = quantised.codes.data_ptr(), quantised.scales.data_ptr()
            functions.pagefleet_int8_pack(*addresses, *quantised.codes.shape[::-1], begin, len(parts), threads)
        self.num_bytes = weight.shape[0] * (quantised.codes.shape[1] + 4)  # codes, and a scale for each output
        super().__init__(functions.pagefleet_int8_linear, packed, weight.dtype, inputs, outputs, activation)


def _quantised(weight: torch.Tensor) -> QuantisedRows:
    parts = [quantise_rows(rotated(part)) for part in torch.split(weight, _CHUNK_OUTPUTS)]
    return QuantisedRows(torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts]))
