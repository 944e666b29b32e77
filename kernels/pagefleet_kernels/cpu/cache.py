"""The library's write to the cache, which kv_write and rotary_kv_write share: WriteArguments of cache.cpp."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet_kernels.cpu.arguments import (
    PAGE_TYPE_NUMBERS,
    TYPE_NUMBERS,
    address,
    check_address,
    check_dense,
    check_page_type,
    check_type,
)
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.quantised_kv import CacheScales, Fp8Scales, Int8Scales

MOST_ROTATED = 256  # numbers of a head that is rotated: MOST_VALUES of cache.cpp


class _Arguments(ctypes.Structure):
    """WriteArguments of cpu/cache.cpp, field by field. Strides count bytes."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "key_pages", "value_pages", "slots")),
        *((name, ctypes.c_void_p) for name in ("cosine", "sine", "query_norm", "key_norm")),
        *((name, ctypes.c_void_p) for name in ("key_scales", "value_scales")),
        *((f"{name}_strides", ctypes.c_int64 * 2) for name in ("query", "key", "value", "key_pages", "value_pages")),
        ("scale_block_strides", ctypes.c_int64 * 2),
        ("angle_stride", ctypes.c_int64),
        ("num_slots", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("tokens", "query_heads", "kv_heads", "key_size", "value_size")),
        *((name, ctypes.c_int32) for name in ("rotated", "block_size", "type", "page_type", "angle_type", "threads")),
        *((name, ctypes.c_float) for name in ("epsilon", "inverse_key_scale", "inverse_value_scale")),
    )


@dataclass(frozen=True, slots=True)
class Rotation:
    """What happens to queries and keys before they are used: a norm of each head where weights are given, then the
    rotation by `cosine` and `sine` [T, R]."""

    query: torch.Tensor  # [T, Hq, D], changed in place
    cosine: torch.Tensor
    sine: torch.Tensor
    query_norm: torch.Tensor | None = None  # [D] float32
    key_norm: torch.Tensor | None = None  # [D] float32
    epsilon: float = 0.0


class PageWriter:
    """Writes keys and values to one layer's pages. Made once for a layer: what is checked and said of the pages, and
    of a layout of keys and values that came before, isn't said again for each step."""

    def __init__(
        self,
        library: CpuLibrary,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        scales: CacheScales | None = None,
    ) -> None:
        """Pages are [num_blocks, block_size, heads, size], their last two dimensions dense; with `scales` they hold
        codes. Raises ValueError."""
        for name, pages in (("key pages", key_pages), ("value pages", value_pages)):
            check_page_type(name, pages, scales)
            check_dense(name, pages)
            check_address(name, pages)
            if pages.stride(2) != pages.shape[3]:
                raise ValueError(f"{name} have strides {pages.stride()}; heads of a slot must be contiguous")
        if key_pages.dtype != value_pages.dtype or key_pages.shape[:3] != value_pages.shape[:3]:
            raise ValueError(
                f"key pages are {key_pages.dtype} {list(key_pages.shape)} and value pages {value_pages.dtype} "
                f"{list(value_pages.shape)}; they may differ in the size of a head only"
            )
        self._write = library.functions.pagefleet_write
        self.pages = key_pages, value_pages
        self.scales = scales
        self._layout: Any = None
        self._arguments = _Arguments(
            key_pages=key_pages.data_ptr(),
            value_pages=value_pages.data_ptr(),
            key_pages_strides=_byte_strides(key_pages),
            value_pages_strides=_byte_strides(value_pages),
            num_slots=key_pages.shape[0] * key_pages.shape[1],
            kv_heads=key_pages.shape[2],
            key_size=key_pages.shape[3],
            value_size=value_pages.shape[3],
            block_size=key_pages.shape[1],
            page_type=PAGE_TYPE_NUMBERS[key_pages.dtype],
            threads=torch.get_num_threads(),
        )
        if isinstance(scales, Int8Scales):
            self._arguments.key_scales = address("key scales", scales.keys)
            self._arguments.value_scales = address("value scales", scales.values)
            self._arguments.scale_block_strides = _byte_strides(scales.keys)[0], _byte_strides(scales.values)[0]
        elif isinstance(scales, Fp8Scales):
            self._arguments.inverse_key_scale = 1 / scales.keys
            self._arguments.inverse_value_scale = 1 / scales.values
        self._reference = ctypes.byref(self._arguments)

    def write(
        self,
        key: torch.Tensor,  # [T, H, D]
        value: torch.Tensor,  # [T, H, Dv]
        slots: torch.Tensor,  # [T] torch.long, contiguous
        rotation: Rotation | None = None,
    ) -> None:
        """Raises ValueError where something doesn't fit or a slot isn't in the pages; nothing is written then."""
        self.prepare(key, value, slots, rotation)
        bad = self._write(self._reference)
        if bad >= 0:
            raise self.refusal(slots, bad)

    def prepare(
        self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, rotation: Rotation | None = None
    ) -> ctypes.Structure:
        """Return what the library reads, up to the next call. Raises ValueError where something doesn't fit."""
        arguments = self._arguments
        layout = (
            key.shape,
            key.stride(),
            key.dtype,
            value.shape,
            value.stride(),
            value.dtype,
            slots.shape,
            slots.stride(),
        )
        if layout != self._layout:
            self._take_layout(key, value, slots)
            self._layout = layout
        arguments.key = address("keys", key)
        arguments.value = address("values", value)
        arguments.slots = slots.data_ptr()
        arguments.query = None
        if rotation is not None:
            self._take_rotation(rotation, key.dtype)
        return arguments

    def refusal(self, slots: torch.Tensor, bad: int) -> ValueError:
        """Return the error for the token that the library named."""
        last = self._arguments.num_slots - 1
        return ValueError(f"slot {int(slots[bad])} of token {bad} isn't there; the pages have slots 0 to {last}")

    def _take_layout(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        arguments = self._arguments
        for name, tensor, size in (("keys", key, arguments.key_size), ("values", value, arguments.value_size)):
            check_type(name, tensor)
            check_dense(name, tensor)
            if tensor.shape != (len(slots), arguments.kv_heads, size):
                raise ValueError(
                    f"{name} have shape {list(tensor.shape)}; expected {[len(slots), arguments.kv_heads, size]}"
                )
        if key.dtype != value.dtype or not slots.is_contiguous():
            raise ValueError(
                f"keys are {key.dtype}, values {value.dtype} and slots have strides {slots.stride()}; "
                "expected one type and contiguous slots"
            )
        arguments.key_strides = _byte_strides(key)
        arguments.value_strides = _byte_strides(value)
        arguments.tokens = key.shape[0]
        arguments.type = TYPE_NUMBERS[key.dtype]

    def _take_rotation(self, rotation: Rotation, dtype: torch.dtype) -> None:
        query, cosine, arguments = rotation.query, rotation.cosine, self._arguments
        check_dense("query", query)
        if arguments.key_size > MOST_ROTATED or not 0 < cosine.shape[1] <= arguments.key_size or cosine.shape[1] % 2:
            raise ValueError(
                f"keys have {arguments.key_size} numbers a head, of which {cosine.shape[1]} are rotated; the CPU "
                f"kernel takes up to {MOST_ROTATED}, and rotates an even number of them"
            )
        check_type("cosine", cosine)
        check_dense("cosine", cosine)
        if query.dtype != dtype or cosine.dtype != rotation.sine.dtype or cosine.stride() != rotation.sine.stride():
            raise ValueError(
                f"queries are {query.dtype} and keys {dtype}; cosine and sine are {cosine.dtype} and "
                f"{rotation.sine.dtype} of strides {cosine.stride()} and {rotation.sine.stride()}; each two must agree"
            )
        arguments.query = address("query", query)
        arguments.query_strides = _byte_strides(query)
        arguments.query_heads = query.shape[1]
        arguments.cosine = address("cosine", cosine)
        arguments.sine = address("sine", rotation.sine)
        arguments.angle_stride = cosine.stride(0) * cosine.element_size()
        arguments.angle_type = TYPE_NUMBERS[cosine.dtype]
        arguments.rotated = cosine.shape[1]
        arguments.query_norm = None if rotation.query_norm is None else rotation.query_norm.data_ptr()
        arguments.key_norm = None if rotation.key_norm is None else rotation.key_norm.data_ptr()
        arguments.epsilon = rotation.epsilon


def _byte_strides(tensor: torch.Tensor) -> tuple[int, int]:
    size = tensor.element_size()
    return tensor.stride(0) * size, tensor.stride(1) * size
