"""A decoder layer by the C++ library: what its parts are told once is told once, and a step is one call."""

import ctypes
from dataclasses import dataclass
from typing import TypedDict

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, address
from pagefleet_kernels.cpu.cache import PageWriter, Rotation
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.decoder_layer.memory import LayerMemory, LayerRows, LayerWidths
from pagefleet_kernels.paged_attention.batch import AttentionBatch
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import attention_arguments
from pagefleet_kernels.prepacked_linear.cpu import LinearCall


class _Norm(ctypes.Structure):
    _fields_ = (("weights", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class _Product(ctypes.Structure):
    _fields_ = (("multiply", ctypes.c_void_p), ("arguments", ctypes.c_void_p))


class _Arguments(ctypes.Structure):
    """LayerArguments of cpu/layer.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("residual", "unadded", "normed", "heads", "attended", "projected")),
        *((name, ctypes.c_void_p) for name in ("gated", "left")),
        *((name, _Norm) for name in ("attention_norm", "mlp_norm", "attention_output_norm", "mlp_output_norm")),
        *((name, _Product) for name in ("qkv", "out", "gate", "down")),
        *((name, ctypes.c_void_p) for name in ("write", "attention", "nanoseconds")),
        ("tokens", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("size", "type", "threads")),
    )


class _Attends(TypedDict):
    scale: float
    window: int | None
    softcap: float | None


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: torch.Tensor  # [N] float32, contiguous
    epsilon: float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """What a layer computes with. `gate` is gated: its outputs are what `down` reads."""

    attention_norm: LayerNorm
    mlp_norm: LayerNorm
    attention_output_norm: LayerNorm | None
    mlp_output_norm: LayerNorm | None
    head_norms: tuple[torch.Tensor | None, torch.Tensor | None, float]  # of queries and keys, as Rotation has them
    qkv: LinearCall
    out: LinearCall
    gate: LinearCall
    down: LinearCall


@dataclass(frozen=True, slots=True)
class LayerStep:
    """One layer's part of a step: the rows, and where their keys and values go."""

    batch: AttentionBatch
    slots: torch.Tensor  # [T] torch.long, contiguous
    cosine: torch.Tensor  # [T, R]
    sine: torch.Tensor  # [T, R]
    writer: PageWriter


def can_attend(head_size: int) -> bool:
    """Whether the library's attention knows heads of this size, whatever the type of the pages."""
    return head_size <= 256 and head_size % 4 == 0


class DecoderLayer:
    """One layer of a model; `memory` is shared by all of them. Made for one thread."""

    def __init__(
        self,
        library: CpuLibrary,
        weights: LayerWeights,
        memory: LayerMemory,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> None:
        self._weights, self._memory = weights, memory
        self._num_heads, self._num_kv_heads, self._head_size = num_heads, num_kv_heads, head_size
        self._attends: _Attends = {"scale": scale, "window": window, "softcap": softcap}
        self._dtype = weights.qkv.dtype
        self._widths = LayerWidths(
            hidden=weights.qkv.inputs,
            heads=weights.qkv.outputs,
            attended=weights.out.inputs,
            gated=weights.gate.outputs,
        )
        self._run = library.functions.pagefleet_layer
        self._arguments = _Arguments(
            size=weights.qkv.inputs,
            type=TYPE_NUMBERS[self._dtype],
            threads=torch.get_num_threads(),
            nanoseconds=memory.nanoseconds.data_ptr(),
        )
        for name in ("attention_norm", "mlp_norm", "attention_output_norm", "mlp_output_norm"):
            norm: LayerNorm | None = getattr(weights, name)
            if norm is not None:
                setattr(self._arguments, name, _Norm(norm.weight.data_ptr(), norm.epsilon))
        for name in ("qkv", "out", "gate", "down"):
            product: LinearCall = getattr(weights, name)
            setattr(self._arguments, name, _Product(product.function, product.arguments))
        self._reference = ctypes.byref(self._arguments)
        self._rows: LayerRows | None = None
        self._heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    def run(self, residual: torch.Tensor, unadded: torch.Tensor | None, step: LayerStep) -> torch.Tensor:
        """Add `unadded` [T, N] to `residual` [T, N] in place, and what attention gives; return what the MLP gives,
        which is to be added to the residual and is overwritten by the next layer.

        Raises ValueError where something doesn't fit or a slot isn't in the pages.
        """
        rows = self._memory.take(self._widths, len(residual), self._dtype)
        arguments = self._arguments
        if rows is not self._rows:
            self._take_rows(rows)
        query, key, value = self._heads
        write = step.writer.prepare(
            key, value, step.slots, Rotation(query, step.cosine, step.sine, *self._weights.head_norms)
        )
        call = AttentionCall(query, *step.writer.pages, step.batch, scales=step.writer.scales, **self._attends)
        attention = attention_arguments(call, rows.attended)
        arguments.write, arguments.attention = ctypes.addressof(write), ctypes.addressof(attention)
        arguments.residual = address("residual", residual)
        arguments.unadded = None if unadded is None else unadded.data_ptr()
        bad = self._run(self._reference)
        if bad >= 0:
            raise step.writer.refusal(step.slots, bad)
        return rows.left

    def _take_rows(self, rows: LayerRows) -> None:
        arguments = self._arguments
        for name in ("normed", "heads", "attended", "projected", "gated", "left"):
            setattr(arguments, name, getattr(rows, name).data_ptr())
        arguments.tokens = len(rows.normed)
        heads = rows.heads.view(len(rows.heads), -1, self._head_size)
        keys_end = self._num_heads + self._num_kv_heads
        self._heads = heads[:, : self._num_heads], heads[:, self._num_heads : keys_end], heads[:, keys_end:]
        self._rows = rows
