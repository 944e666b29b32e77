"""Weights packed and multiplied by the C++ library: a row's result depends on that row alone, to the bit."""

import ctypes

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, address, check_dense
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.gated_activation import Activation
from pagefleet_kernels.gated_activation.cpu import ACTIVATION_NUMBERS
from pagefleet_kernels.prepacked_linear.memory import WeightMemory

TYPES = (torch.float32, torch.bfloat16)


class _Arguments(ctypes.Structure):
    """LinearArguments of cpu/linear.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "packed", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "out_stride", "rows")),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "type", "threads", "activation")),
    )


class LibraryWeight:
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
        floats = functions.pagefleet_packed_floats(inputs, outputs, number)
        self._packed = memory.take(len(parts) * floats)
        threads = torch.get_num_threads()
        for index, part in enumerate(parts):
            begin = self._packed.data_ptr() + index * functions.pagefleet_panel_bytes(inputs, number)
            functions.pagefleet_pack(address("weight", part), inputs, outputs, number, begin, len(parts), threads)
        self._dtype, self._inputs, self._outputs = weight.dtype, inputs, outputs
        self._function = functions.pagefleet_linear
        self._arguments = _Arguments(
            packed=self._packed.data_ptr(),
            out_stride=outputs * weight.itemsize,
            inputs=inputs,
            outputs=outputs,
            type=number,
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
