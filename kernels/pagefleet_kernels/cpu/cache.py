"""The library's write to the cache, which kv_write and rotary_kv_write share: WriteArguments of cache.cpp."""

import ctypes
from dataclasses import dataclass

import torch

from pagefleet_kernels.cpu.arguments import TYPE_NUMBERS, check_address, check_dense, check_type
from pagefleet_kernels.cpu.library import CpuLibrary


class _Arguments(ctypes.Structure):
    """WriteArguments of cpu/cache.cpp, field by field. Strides count bytes."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "key_pages", "value_pages", "slots")),
        *((name, ctypes.c_void_p) for name in ("cosine", "sine", "query_norm", "key_norm")),
        *((f"{name}_strides", ctypes.c_int64 * 2) for name in ("query", "key", "value", "key_pages", "value_pages")),
        ("angle_stride", ctypes.c_int64),
        ("num_slots", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("tokens", "query_heads", "kv_heads", "key_size", "value_size")),
        *((name, ctypes.c_int32) for name in ("rotated", "block_size", "type", "page_type", "angle_type", "threads")),
        ("epsilon", ctypes.c_float),
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


def write(
    library: CpuLibrary,
    key: torch.Tensor,  # [T, H, D]
    value: torch.Tensor,  # [T, H, Dv]
    key_pages: torch.Tensor,  # [N, block_size, H, D]
    value_pages: torch.Tensor,  # [N, block_size, H, Dv]
    slots: torch.Tensor,  # [T]
    rotation: Rotation | None = None,
) -> None:
    """Raises ValueError where a slot isn't in the pages, before anything is written."""
    for name, tensor in (("key", key), ("value", value), ("key pages", key_pages), ("value pages", value_pages)):
        check_type(name, tensor)
        check_dense(name, tensor)
        check_address(name, tensor)
    if key.dtype != value.dtype or key_pages.dtype != value_pages.dtype:
        raise ValueError(
            f"keys are {key.dtype} and values {value.dtype}, their pages {key_pages.dtype} and {value_pages.dtype}; "
            "each must be one type"
        )
    for name, pages in (("key", key_pages), ("value", value_pages)):
        if pages.stride(2) != pages.shape[3]:
            raise ValueError(f"{name} pages have strides {pages.stride()}; heads of a slot must be contiguous")
    arguments = _Arguments(
        key=key.data_ptr(),
        value=value.data_ptr(),
        key_pages=key_pages.data_ptr(),
        value_pages=value_pages.data_ptr(),
        slots=slots.contiguous().data_ptr(),
        key_strides=_byte_strides(key),
        value_strides=_byte_strides(value),
        key_pages_strides=_byte_strides(key_pages),
        value_pages_strides=_byte_strides(value_pages),
        num_slots=key_pages.shape[0] * key_pages.shape[1],
        tokens=key.shape[0],
        kv_heads=key.shape[1],
        key_size=key.shape[2],
        value_size=value.shape[2],
        block_size=key_pages.shape[1],
        type=TYPE_NUMBERS[key.dtype],
        page_type=TYPE_NUMBERS[key_pages.dtype],
        threads=torch.get_num_threads(),
    )
    if rotation is not None:
        _add_rotation(arguments, rotation, key.dtype)
    bad = library.functions.pagefleet_write(ctypes.byref(arguments))
    if bad >= 0:
        raise ValueError(
            f"slot {int(slots[bad])} of token {bad} isn't there; the pages have slots 0 to {arguments.num_slots - 1}"
        )


def _add_rotation(arguments: _Arguments, rotation: Rotation, dtype: torch.dtype) -> None:
    query = rotation.query
    for name, tensor in (("query", query), ("cosine", rotation.cosine), ("sine", rotation.sine)):
        check_type(name, tensor)
        check_dense(name, tensor)
        check_address(name, tensor)
    if query.dtype != dtype:
        raise ValueError(f"queries are {query.dtype} and keys {dtype}; both must be one type")
    arguments.query = query.data_ptr()
    arguments.query_strides = _byte_strides(query)
    arguments.query_heads = query.shape[1]
    arguments.cosine = rotation.cosine.data_ptr()
    arguments.sine = rotation.sine.data_ptr()
    arguments.angle_stride = rotation.cosine.stride(0) * rotation.cosine.element_size()
    arguments.angle_type = TYPE_NUMBERS[rotation.cosine.dtype]
    arguments.rotated = rotation.cosine.shape[1]
    arguments.query_norm = None if rotation.query_norm is None else rotation.query_norm.data_ptr()
    arguments.key_norm = None if rotation.key_norm is None else rotation.key_norm.data_ptr()
    arguments.epsilon = rotation.epsilon


def _byte_strides(tensor: torch.Tensor) -> tuple[int, int]:
    size = tensor.element_size()
    return tensor.stride(0) * size, tensor.stride(1) * size
