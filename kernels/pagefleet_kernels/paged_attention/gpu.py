"""paged_attention on a GPU: the plan of a step and the launch of the Triton kernels.

Importing this needs Triton; running it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1) and CPU tensors.
"""

from dataclasses import dataclass

import torch
import triton

from pagefleet_kernels.launch import Launch
from pagefleet_kernels.paged_attention.batch import AttentionBatch
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.configs import (
    CacheKind,
    Chip,
    TileConfig,
    amd_family,
    choose_config,
    nvidia_family,
)
from pagefleet_kernels.paged_attention.tiles import MIN_SPLIT_KEYS, StepTables, choose_splits, cut_tiles, sizes_of
from pagefleet_kernels.paged_attention.triton import attention_kernel, merge_kernel
from pagefleet_kernels.quantised_kv.scales import CacheScales, Fp8Scales, Int8Scales

_LOG2_E = 1.4426950408889634
# An e4m3 number whose exponent and mantissa are moved to float16's places is 256 times too small.
_FP8_FACTOR = 256.0
_MERGED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A step's tables on the device and what cuts it into programs; the same for all layers of one shape."""

    tables: StepTables
    config: TileConfig


def plan_attention(
    batch: AttentionBatch, group: int, head_size: int, kind: CacheKind, chip: Chip, device: torch.device
) -> AttentionPlan:
    """Cut the step into tiles and move its tables to the device. One plan serves all layers of equal arguments.

    Tables that are in `batch.plans` are taken instead: their owner loads them with rows of one query each.
    """
    longest_row = max((row.num_tokens for row in batch.rows), default=1)
    config = choose_config(chip.family, kind, head_size, group, longest_row)
    tables: StepTables | None = batch.plans.get(StepTables)
    if tables is None:
        tiles = cut_tiles(batch, config.rows // group)
        tables = StepTables(sizes_of(batch, len(tiles)), device)
        tables.load(batch, tiles)
    return AttentionPlan(tables, config)


def paged_attention_triton(call: AttentionCall, chip: Chip) -> torch.Tensor:
    """The GPU's paged_attention. The plan is made at a step's first layer and kept in `batch.plans`."""
    head_size = max(call.query.shape[2], call.value_pages.shape[3])
    kind, device, plans = cache_kind(call.key_pages.dtype), call.query.device, call.batch.plans
    key = ("triton", call.group, head_size, kind, chip, device)
    plan: AttentionPlan | None = plans.get(key)
    if plan is None:
        plan = plans[key] = plan_attention(call.batch, call.group, head_size, kind, chip, device)
    output = call.new_output()
    launch_attention(output, call, plan, chip)
    return output


def chip_of(device: torch.device) -> Chip:
    """Look up a GPU. Raises ValueError where there are no tiles for it."""
    properties = torch.cuda.get_device_properties(device)
    family = (
        amd_family(properties.gcnArchName) if torch.version.hip else nvidia_family(properties.major, properties.minor)
    )
    return Chip(family, properties.multi_processor_count)


def cache_kind(dtype: torch.dtype) -> CacheKind:
    kinds: dict[torch.dtype, CacheKind] = {
        torch.float16: "half",
        torch.bfloat16: "half",
        torch.float32: "float32",
        torch.int8: "int8",
        torch.uint8: "fp8",
    }
    if dtype not in kinds:
        raise ValueError(f"pages have dtype {dtype}; there are kernels for {', '.join(map(str, kinds))}")
    return kinds[dtype]


def launch_attention(output: torch.Tensor, call: AttentionCall, plan: AttentionPlan, chip: Chip) -> None:
    """Run the kernel over a plan's tables. It reads nothing back from the device, and its grid depends on the plan's
    sizes alone, so it can be captured in a graph and replayed after `plan.tables.load`."""
    splits = _splits(plan, call, chip)
    partial, log_sums = output, None
    if splits > 1:
        partial = output.new_empty(splits, *output.shape, dtype=torch.float32)
        log_sums = output.new_empty(splits, *output.shape[:2], dtype=torch.float32)
    attention_launch(partial, log_sums, call, plan, splits).run()
    if log_sums is not None:
        merge_launch(output, partial, log_sums, plan).run()


def attention_launch(
    output: torch.Tensor, log_sums: torch.Tensor | None, call: AttentionCall, plan: AttentionPlan, splits: int
) -> Launch:
    """Return the launch that attends: into `output`, or with `log_sums` into each split's part of it."""
    query, key_pages, value_pages, softcap = call.query, call.key_pages, call.value_pages, call.softcap
    _, block_size, num_kv_heads, value_size = value_pages.shape
    head = query.shape[2]
    key_factor, value_factor, key_scales, value_scales = _factors(key_pages, call.scales)
    score_scale = call.scale * key_factor
    tables, config = plan.tables, plan.config
    arguments = {
        "output": output,
        "log_sums": log_sums,
        "query": query,
        "keys": key_pages,
        "values": value_pages,
        "key_scales": key_scales,
        "value_scales": value_scales,
        "sinks": call.sinks,
        "block_tables": tables.block_tables,
        "context_lengths": tables.context_lengths,
        "query_starts": tables.query_starts,
        "tile_rows": tables.tile_rows,
        "tile_tokens": tables.tile_tokens,
        "pages_per_row": tables.sizes.pages_per_row,
        "num_tokens": query.shape[0],
        "query_token_stride": query.stride(0),
        "query_head_stride": query.stride(1),
        "key_page_stride": key_pages.stride(0),
        "value_page_stride": value_pages.stride(0),
        "key_scale_page_stride": 0 if key_scales is None else key_scales.stride(0),
        "value_scale_page_stride": 0 if value_scales is None else value_scales.stride(0),
        # tanh(s / c) = 1 - 2 / (exp2(2 s / c · log2 e) + 1)
        "tanh_factor": 0.0 if softcap is None else 2 * score_scale / softcap * _LOG2_E,
        "score_factor": (score_scale if softcap is None else softcap) * _LOG2_E,
        "output_factor": value_factor,
        "GROUP": call.group,
        "BLOCK_SIZE": block_size,
        "HEAD": head,
        "HEAD_PADDED": _padded(head),
        "VALUE": value_size,
        "VALUE_PADDED": _padded(value_size),
        "ROWS": config.rows,
        "KEYS": config.keys,
        "WINDOW": call.window or 0,
        "SOFTCAP": softcap is not None,
        "KIND": cache_kind(key_pages.dtype),
        "UPCAST": _upcast(query),
        "MIN_SPLIT_KEYS": MIN_SPLIT_KEYS,
    }
    grid = (tables.sizes.num_tiles, num_kv_heads, splits)
    return Launch(attention_kernel, grid, arguments, {"num_warps": config.num_warps, "num_stages": config.num_stages})


def merge_launch(output: torch.Tensor, partial: torch.Tensor, log_sums: torch.Tensor, plan: AttentionPlan) -> Launch:
    """Return the launch that adds up the splits' parts."""
    num_tokens, num_heads, value_size = output.shape
    arguments = {
        "output": output,
        "partial": partial,
        "log_sums": log_sums,
        "query_starts": plan.tables.query_starts,
        "num_rows": plan.tables.sizes.num_rows,
        "num_tokens": num_tokens,
        "num_splits": partial.shape[0],
        "VALUE": value_size,
        "VALUE_PADDED": _padded(value_size),
        "SPLITS": _MERGED_AT_ONCE,
    }
    return Launch(merge_kernel, (num_tokens, num_heads), arguments, {"num_warps": 4})


def _splits(plan: AttentionPlan, call: AttentionCall, chip: Chip) -> int:
    _, block_size, num_kv_heads, _ = call.key_pages.shape
    longest = plan.tables.sizes.pages_per_row * block_size
    if call.window is not None:
        longest = min(longest, call.window - 1 + plan.config.rows // call.group)
    return choose_splits(plan.tables.sizes.num_tiles * num_kv_heads, longest, chip.num_processors)


def _factors(
    pages: torch.Tensor, scales: CacheScales | None
) -> tuple[float, float, torch.Tensor | None, torch.Tensor | None]:
    """Return what the scores and the output are multiplied by, and the scales of single keys and values."""
    if scales is not None:
        scales.check(pages)
    if isinstance(scales, Int8Scales):
        return 1.0, 1.0, scales.keys, scales.values
    if isinstance(scales, Fp8Scales):
        return scales.keys * _FP8_FACTOR, scales.values * _FP8_FACTOR, None, None
    if cache_kind(pages.dtype) in ("int8", "fp8"):
        raise ValueError(f"pages of {pages.dtype} can't be read without their scales")
    return 1.0, 1.0, None, None


def _padded(size: int) -> int:
    """Matrix units take powers of two from 16 on."""
    return max(16, int(triton.next_power_of_2(size)))


def _upcast(query: torch.Tensor) -> bool:
    """The interpreter keeps bfloat16 as bits and calculates with those, so the kernel converts first."""
    return query.device.type == "cpu" and query.dtype == torch.bfloat16
