"""Weights packed and multiplied by the C++ library: a row's result depends on that row alone, to the bit."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, address, check_dense
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.gated_activation import Activation
from pagefleet_kernels.gated_activation.cpu import ACTIVATION_NUMBERS
from pagefleet_kernels.prepacked_linear.memory import WeightMemory

TYPES = (torch.float32, torch.bfloat16)


class _Arguments(ctypes.Structure):
    """LinearArguments of cpu/linear.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "packed", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "out_stride", "rows")),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "type", "threads", "activation")),
    )


@dataclass(frozen=True, slots=True)
class LinearCall:
    """Where a function of the library and its LinearArguments lie, and what they multiply."""

    function: int
    arguments: int
    dtype: torch.dtype
    inputs: int
    outputs: int


class PackedWeight:
    """A weight in the library's order, with the function that multiplies by it."""

    def __init__(
        self,
        function: Any,
        packed: torch.Tensor,
        dtype: torch.dtype,
        inputs: int,
        outputs: int,
        activation: Activation | None,
    ) -> None:
        """`dtype` is what goes in and comes out. With an activation `packed` is a gate and its factor."""
        self._function, self._packed = function, packed
        self._dtype, self._inputs, self._outputs = dtype, inputs, outputs
        self._arguments = _Arguments(
            packed=packed.data_ptr(),
            out_stride=outputs * dtype.itemsize,
            inputs=inputs,
            outputs=outputs,
            type=TYPE_NUMBERS[dtype],
            threads=torch.get_num_threads(),
            activation=-1 if activation is None else ACTIVATION_NUMBERS[activation],
        )
        self._reference = ctypes.byref(self._arguments)

    def call(self, bias: torch.Tensor | None) -> LinearCall:
        """Return the product for other parts of the library to call; valid as long as this and the bias are."""
        self._arguments.bias = None if bias is None else bias.data_ptr()
        function = ctypes.cast(self._function, ctypes.c_void_p).value
        assert function is not None
        return LinearCall(function, ctypes.addressof(self._arguments), self._dtype, self._inputs, self._outputs)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x · weightᵀ + bias, or of a gated weight activation(gate) times factor. `bias` is float32 [out].
        Raises ValueError where x [..., in] has another type or size."""
        if x.dtype != self._dtype or x.shape[-1] != self._inputs:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}; expected {self._dtype} [..., {self._inputs}]")
        rows = x if x.dim() == 2 else x.reshape(-1, self._inputs)
        stride = rows.stride(0) * rows.itemsize
        if stride % 4:
            rows, stride = rows.contiguous(), self._inputs * rows.itemsize
        check_dense("x", rows)
        out = rows.new_empty(rows.shape[0], self._outputs)
        arguments = self._arguments
        arguments.x = address("x", rows)
        arguments.bias = None if bias is None else bias.data_ptr()
        arguments.out = out.data_ptr()
        arguments.x_stride = stride
        arguments.rows = rows.shape[0]
        self._function(self._reference)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self._outputs)


class LibraryWeight(PackedWeight):
    """The weight's own numbers."""

    def __init__(
        self, library: CpuLibrary, weight: torch.Tensor, memory: WeightMemory, activation: Activation | None = None
    ) -> None:
        """`weight` is [out, in], float32 or bfloat16, with an even number of inputs; with an activation its first half
        is the gate, its second the factor. Raises ValueError."""
        if weight.dtype not in TYPES or weight.dim() != 2 or weight.shape[1] % 2:
            raise ValueError(
                f"the weight is {weight.dtype} {list(weight.shape)}; the CPU kernel takes float32 and bfloat16 and an "
                "even number of inputs"
            )
        parts = weight.contiguous().chunk(1 if activation is None else 2)
        outputs, inputs = parts[0].shape
        functions, number = library.functions, TYPE_NUMBERS[weight.dtype]
        packed = memory.take(len(parts) * functions.pagefleet_packed_floats(inputs, outputs, number))
        threads = torch.get_num_threads()
        for index, part in enumerate(parts):
            begin = packed.data_ptr() + index * functions.pagefleet_panel_bytes(inputs, number)
            functions.pagefleet_pack(address("weight", part), inputs, outputs, number, begin, len(parts), threads)
        super().__init__(functions.pagefleet_linear, packed, weight.dtype, inputs, outputs, activation)
