"""paged_attention by the C++ library: pages are read in place, decode and prefill rows in one call.

A decode row's context is cut at fixed positions, so a result doesn't depend on what else is in the batch.
"""

import ctypes
from array import array
from dataclasses import dataclass
from itertools import accumulate

import torch

from pagefleet_kernels.cpu.arguments import (
    PAGE_TYPE_NUMBERS,
    TYPE_NUMBERS,
    address,
    check_address,
    check_dense,
    check_page_type,
)
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.paged_attention.batch import AttentionBatch
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.quantised_kv import Fp8Scales, Int8Scales

_MAX_SIZE = 256


class _Arguments(ctypes.Structure):
    """AttentionArguments of cpu/attention.h, field by field. Strides count bytes."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("table_start", ctypes.c_void_p),
        ("first_token", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("query_strides", ctypes.c_int64 * 2),
        ("out_strides", ctypes.c_int64 * 2),
        ("key_strides", ctypes.c_int64 * 3),
        ("value_strides", ctypes.c_int64 * 3),
        ("scale_block_strides", ctypes.c_int64 * 2),
        ("rows", ctypes.c_int32),
        ("query_heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("key_size", ctypes.c_int32),
        ("value_size", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("query_type", ctypes.c_int32),
        ("kv_type", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("output_factor", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows as the library reads them; shared by the layers of a step."""

    tables: "array[int]"
    table_start: "array[int]"
    first_token: "array[int]"
    context: "array[int]"
    num_blocks: int  # one more than the largest block number


def why_not(query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
    """Return what of these types and sizes the library doesn't know, or None."""
    stored = key_pages.dtype
    if query.dtype not in TYPE_NUMBERS or stored not in PAGE_TYPE_NUMBERS or stored != value_pages.dtype:
        return (
            f"the C++ kernels take float32, bfloat16 and float16, and pages of these or of codes in eight bits, not "
            f"queries of {query.dtype} on keys of {stored} and values of {value_pages.dtype}"
        )
    multiple = 4 if stored.itemsize == 1 else 2
    sizes = key_pages.shape[3], value_pages.shape[3]
    if any(size > _MAX_SIZE or size % multiple for size in sizes):
        return (
            f"the C++ kernels read even head sizes up to {_MAX_SIZE}, of codes in eight bits multiples of 4, not keys "
            f"of {sizes[0]} and values of {sizes[1]} stored as {stored}"
        )
    return None


def paged_attention_cpu(library: CpuLibrary, call: AttentionCall) -> torch.Tensor:
    out = call.new_output()
    arguments = attention_arguments(call, out)
    library.functions.pagefleet_attention(ctypes.byref(arguments))
    return out


def attention_arguments(call: AttentionCall, out: torch.Tensor) -> ctypes.Structure:
    """Return what the library reads to write `out` [T, Hq, Dv], which is contiguous; layers of one shape share it, so
    it is valid until the next layer's. Raises ValueError where the library can't read the tensors."""
    query, key_pages, value_pages, sinks, scales = call.query, call.key_pages, call.value_pages, call.sinks, call.scales
    key_factor, value_factor = (scales.keys, scales.values) if isinstance(scales, Fp8Scales) else (1.0, 1.0)
    scale = call.scale * key_factor
    layouts = ((x.shape, x.stride(), x.dtype) for x in (query, key_pages, value_pages))
    key = (_Arguments, *layouts, scale, call.window, call.softcap)
    arguments: _Arguments | None = call.batch.plans.get(key)
    if arguments is None:
        _check(call)
        arguments = call.batch.plans[key] = _arguments(call, scale)
    check_address("query", query)
    check_address("key pages", key_pages)
    check_address("value pages", value_pages)
    if sinks is not None:
        sinks = sinks.float().contiguous()
    arguments.query = query.data_ptr()
    arguments.key = key_pages.data_ptr()
    arguments.value = value_pages.data_ptr()
    arguments.out = out.data_ptr()
    arguments.sinks = None if sinks is None else sinks.data_ptr()
    arguments.output_factor = value_factor
    if isinstance(scales, Int8Scales):
        arguments.key_scales = address("key scales", scales.keys)
        arguments.value_scales = address("value scales", scales.values)
        arguments.scale_block_strides = _byte_strides(scales.keys)[0], _byte_strides(scales.values)[0]
    return arguments


def _check(call: AttentionCall) -> None:
    query, key_pages, value_pages = call.query, call.key_pages, call.value_pages
    reason = why_not(query, key_pages, value_pages)
    if reason is not None:
        raise ValueError(reason)
    for name, tensor in (("query", query), ("key pages", key_pages), ("value pages", value_pages)):
        check_dense(name, tensor)
    check_page_type("key pages", key_pages, call.scales)
    num_blocks = _plan(call.batch).num_blocks
    if num_blocks > key_pages.shape[0]:
        raise ValueError(f"block {num_blocks - 1} is in a block table, but there are {key_pages.shape[0]} blocks")


def _arguments(call: AttentionCall, scale: float) -> _Arguments:
    """All that layers of one shape share; addresses come with each call."""
    query, key_pages, value_pages = call.query, call.key_pages, call.value_pages
    plan = _plan(call.batch)
    element = query.element_size()
    return _Arguments(
        tables=plan.tables.buffer_info()[0],
        table_start=plan.table_start.buffer_info()[0],
        first_token=plan.first_token.buffer_info()[0],
        context=plan.context.buffer_info()[0],
        query_strides=_byte_strides(query),
        out_strides=(query.shape[1] * value_pages.shape[3] * element, value_pages.shape[3] * element),
        key_strides=_byte_strides(key_pages),
        value_strides=_byte_strides(value_pages),
        rows=len(call.batch.rows),
        query_heads=query.shape[1],
        kv_heads=key_pages.shape[2],
        key_size=key_pages.shape[3],
        value_size=value_pages.shape[3],
        block_size=call.batch.block_size,
        window=call.window or 0,
        query_type=TYPE_NUMBERS[query.dtype],
        kv_type=PAGE_TYPE_NUMBERS[key_pages.dtype],
        threads=torch.get_num_threads(),
        scale=scale,
        softcap=call.softcap or 0.0,
    )


def _byte_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    size = tensor.element_size()
    return tuple(stride * size for stride in tensor.stride()[:-1])


def _plan(batch: AttentionBatch) -> _Plan:
    if _Plan not in batch.plans:
        batch.plans[_Plan] = _make_plan(batch)
    made: _Plan = batch.plans[_Plan]
    return made


def _make_plan(batch: AttentionBatch) -> _Plan:
    tables, table_start = array("i"), array("q")
    for row in batch.rows:
        table_start.append(len(tables))
        tables.extend(row.block_table[: -(-row.context_length // batch.block_size)])
    if tables and min(tables) < 0:
        raise ValueError(f"block {min(tables)} is in a block table; blocks are numbered from 0")
    return _Plan(
        tables=tables,
        table_start=table_start,
        first_token=array("i", accumulate((row.num_tokens for row in batch.rows), initial=0)),
        context=array("i", (row.context_length for row in batch.rows)),
        num_blocks=max(tables, default=-1) + 1,
    )
