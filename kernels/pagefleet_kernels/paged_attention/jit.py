"""paged_attention by numba: decode rows by its kernel, prefill rows by gathering and torch's attention.

A decode row's context is cut at fixed positions, so a result doesn't depend on what else is in the batch.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pagefleet_kernels.cpu.arguments import check_address, check_dense
from pagefleet_kernels.jit.library import NumbaLibrary
from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.gathered import gathered_attention

# The kernel by what pages hold.
STORED = {torch.float32: "attend_float32", torch.bfloat16: "attend_bfloat16"}
# Positions of a part: small enough to share a long row among threads, large enough that joining parts costs little.
_PART = 512
# Below this much to read, waking a second thread costs more than it helps.
_ONE_THREAD_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows of a step as the kernel reads them; shared by the layers of one window."""

    decode_tokens: torch.Tensor
    prefill: AttentionBatch | None  # None: every row is a decode row
    prefill_tokens: torch.Tensor
    items: np.ndarray[Any, Any]  # [items, 4]: row, first position, end, where its block table begins
    row_items: np.ndarray[Any, Any]  # [rows + 1]
    tables: np.ndarray[Any, Any]
    num_blocks: int  # one more than the largest block number


def why_not(query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
    """Return what of these types the kernel doesn't know, or None."""
    if not query.dtype.is_floating_point or key_pages.dtype != value_pages.dtype:
        return f"queries are {query.dtype}, keys {key_pages.dtype} and values {value_pages.dtype}"
    return why_not_stored(key_pages.dtype)


def why_not_stored(dtype: torch.dtype) -> str | None:
    """Return why the kernel doesn't read pages of this type, or None."""
    if dtype in STORED:
        return None
    names = " and ".join(str(known).removeprefix("torch.") for known in STORED)
    found = "codes in eight bits" if dtype.itemsize == 1 else str(dtype).removeprefix("torch.")
    return f"numba's kernels read pages of {names}, not of {found}"


def paged_attention_numba(library: NumbaLibrary, call: AttentionCall) -> torch.Tensor:
    plan = _plan(call.batch, call.window)
    num_blocks = call.key_pages.shape[0]
    if plan.num_blocks > num_blocks:
        raise ValueError(f"block {plan.num_blocks - 1} is in a block table, but there are {num_blocks} blocks")
    if plan.prefill is None:
        return _decoded(library, call, plan).to(call.query.dtype)
    out = call.new_output()
    out[plan.prefill_tokens] = gathered_attention(
        replace(call, query=call.query[plan.prefill_tokens], batch=plan.prefill)
    )
    if len(plan.decode_tokens):
        decoded = _decoded(library, replace(call, query=call.query[plan.decode_tokens]), plan)
        out[plan.decode_tokens] = decoded.to(out.dtype)
    return out


def _decoded(library: NumbaLibrary, call: AttentionCall, plan: _Plan) -> torch.Tensor:
    """Return the outputs in float32; the call's queries are the plan's decode rows."""
    # Not at the top: it imports numba.
    from pagefleet_kernels.paged_attention.numba import ARGUMENTS, TILE

    key_pages, value_pages = call.key_pages, call.value_pages
    for name, pages in (("key pages", key_pages), ("value pages", value_pages)):
        check_dense(name, pages)
        check_address(name, pages)
    num_rows, query_heads, key_size = call.query.shape
    value_size, num_items = value_pages.shape[3], len(plan.items)
    threads = _num_threads(plan, key_pages, value_pages)
    query = call.query.float().contiguous()
    sinks = None if call.sinks is None else call.sinks.float().contiguous()
    out = query.new_empty(num_rows, query_heads, value_size)
    parts = query.new_empty(num_items, query_heads * (value_size + 2))
    # A cache line apart, so that threads don't write to one line.
    scratch = query.new_empty(threads, query_heads * (key_size + TILE) + 16)
    counters = np.zeros(3, np.int64)
    arguments = np.zeros((), ARGUMENTS)
    for name, value in {
        "query": query.data_ptr(),
        "out": out.data_ptr(),
        "keys": key_pages.data_ptr(),
        "values": value_pages.data_ptr(),
        "sinks": 0 if sinks is None else sinks.data_ptr(),
        "items": plan.items.ctypes.data,
        "row_items": plan.row_items.ctypes.data,
        "tables": plan.tables.ctypes.data,
        "parts": parts.data_ptr(),
        "scratch": scratch.data_ptr(),
        "counters": counters.ctypes.data,
        "num_items": num_items,
        "num_rows": num_rows,
        "scratch_bytes": scratch.stride(0) * 4,
        "query_heads": query_heads,
        "kv_heads": key_pages.shape[2],
        "key_size": key_size,
        "value_size": value_size,
        "block_size": key_pages.shape[1],
        "key_page_stride": key_pages.stride(0) * key_pages.itemsize,
        "value_page_stride": value_pages.stride(0) * value_pages.itemsize,
        "element_bytes": key_pages.itemsize,
        "part_bytes": parts.stride(0) * 4,
        "scale": call.scale,
        "softcap": call.softcap or 0.0,
    }.items():
        arguments[name] = value
    library.run(STORED[key_pages.dtype], arguments.ctypes.data, threads)
    library.run("combine", arguments.ctypes.data, threads)
    return out


def _num_threads(plan: _Plan, key_pages: torch.Tensor, value_pages: torch.Tensor) -> int:
    positions = int((plan.items[:, 2] - plan.items[:, 1]).sum())
    slot_bytes = sum(pages.shape[2] * pages.shape[3] * pages.itemsize for pages in (key_pages, value_pages))
    return 1 if positions * slot_bytes < _ONE_THREAD_BYTES else torch.get_num_threads()


def _plan(batch: AttentionBatch, window: int | None) -> _Plan:
    key = (_Plan, window)
    if key not in batch.plans:
        batch.plans[key] = _make_plan(batch, window)
    made: _Plan = batch.plans[key]
    return made


def _make_plan(batch: AttentionBatch, window: int | None) -> _Plan:
    decodes: list[BatchRow] = []
    prefills: list[BatchRow] = []
    decode_tokens: list[int] = []
    prefill_tokens: list[int] = []
    first = 0
    for row in batch.rows:
        rows, tokens = (decodes, decode_tokens) if row.num_tokens == 1 else (prefills, prefill_tokens)
        rows.append(row)
        tokens.extend(range(first, first + row.num_tokens))
        first += row.num_tokens
    items, row_items, tables = _cut(decodes, batch.block_size, window)
    if any(block < 0 for block in tables):
        raise ValueError(f"block {min(tables)} is in a block table; blocks are numbered from 0")
    return _Plan(
        decode_tokens=torch.tensor(decode_tokens, dtype=torch.long),
        prefill=AttentionBatch(tuple(prefills), batch.block_size) if prefills else None,
        prefill_tokens=torch.tensor(prefill_tokens, dtype=torch.long),
        items=np.array(items, np.int64).reshape(-1, 4),
        row_items=np.array(row_items, np.int64),
        tables=np.array(tables, np.int32),
        num_blocks=max(tables, default=-1) + 1,
    )


def _cut(
    rows: list[BatchRow], block_size: int, window: int | None
) -> tuple[list[tuple[int, int, int, int]], list[int], list[int]]:
    """Return the parts of the rows' contexts, where each row's parts begin, and the block tables end to end."""
    items: list[tuple[int, int, int, int]] = []
    row_items, tables = [0], list[int]()
    for index, row in enumerate(rows):
        end = row.context_length
        begin = 0 if window is None else max(0, end - window)
        while begin < end:
            part_end = min((begin // _PART + 1) * _PART, end)
            items.append((index, begin, part_end, len(tables)))
            begin = part_end
        row_items.append(len(items))
        tables.extend(row.block_table[: -(-end // block_size)])
    return items, row_items, tables
