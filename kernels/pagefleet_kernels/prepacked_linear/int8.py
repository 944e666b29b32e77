"""Weights as int8 codes, packed and multiplied by the C++ library: a row's result depends on that row alone, to the
bit."""

import ctypes

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, address, check_dense
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.gated_activation import Activation
from pagefleet_kernels.gated_activation.cpu import ACTIVATION_NUMBERS
from pagefleet_kernels.prepacked_linear.memory import WeightMemory
from pagefleet_kernels.prepacked_linear.reference import LARGEST_CODE, QuantisedRows, quantise_rows

# So many products of two codes fit into the int32 that sums them.
MOST_INPUTS = (2**31 - 1) // LARGEST_CODE**2
# Outputs that are quantised at a time: their float32 copy is all that packing takes beside the codes.
_CHUNK_OUTPUTS = 4096


class _Arguments(ctypes.Structure):
    """Int8LinearArguments of cpu/linear_int8.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "packed", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "out_stride", "rows")),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "type", "threads", "activation")),
    )


class Int8Weight:
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
        self._packed = memory.take(len(parts) * functions.pagefleet_int8_packed_words(inputs, outputs))
        for index, part in enumerate(parts):
            begin = self._packed.data_ptr() + 4 * index * functions.pagefleet_int8_panel_words(inputs)
            quantised = _quantised(part)
            addresses = quantised.codes.data_ptr(), quantised.scales.data_ptr()
            functions.pagefleet_int8_pack(*addresses, inputs, outputs, begin, len(parts), threads)
        self.num_bytes = weight.shape[0] * (inputs + 4)  # codes, and a scale for each output
        self._dtype, self._inputs, self._outputs = weight.dtype, inputs, outputs
        self._function = functions.pagefleet_int8_linear
        self._arguments = _Arguments(
            packed=self._packed.data_ptr(),
            out_stride=outputs * weight.itemsize,
            inputs=inputs,
            outputs=outputs,
            type=TYPE_NUMBERS[weight.dtype],
            threads=threads,
            activation=-1 if activation is None else ACTIVATION_NUMBERS[activation],
        )
        self._reference = ctypes.byref(self._arguments)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x · weightᵀ + bias, or of a gated weight activation(gate) times factor. `bias` is float32 [out].
        Raises ValueError where x [..., in] has another type or size."""
        if x.dtype != self._dtype or x.shape[-1] != self._inputs:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}; expected {self._dtype} [..., {self._inputs}]")
        rows = x if x.dim() == 2 else x.reshape(-1, self._inputs)
        check_dense("x", rows)
        out = rows.new_empty(rows.shape[0], self._outputs)
        arguments = self._arguments
        arguments.x = address("x", rows)
        arguments.bias = None if bias is None else bias.data_ptr()
        arguments.out = out.data_ptr()
        arguments.x_stride = rows.stride(0) * rows.itemsize
        arguments.rows = rows.shape[0]
        self._function(self._reference)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self._outputs)


def _quantised(weight: torch.Tensor) -> QuantisedRows:
    parts = [quantise_rows(part) for part in torch.split(weight, _CHUNK_OUTPUTS)]
    return QuantisedRows(torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts]))
