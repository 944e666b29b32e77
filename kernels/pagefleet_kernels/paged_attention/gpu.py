"""paged_attention on a GPU: the plan of a step and the launch of the Triton kernels.

Importing this needs Triton; running it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1) and CPU tensors.
"""

from dataclasses import dataclass

import torch
import triton

from pagefleet_kernels.paged_attention.batch import AttentionBatch
from pagefleet_kernels.paged_attention.configs import CacheKind, Chip, TileConfig, choose_config
from pagefleet_kernels.paged_attention.tiles import Splits, StepTables, choose_splits, cut_tiles, sizes_of
from pagefleet_kernels.paged_attention.triton import attention_kernel, merge_kernel

_LOG2_E = 1.4426950408889634
# An e4m3 number whose exponent and mantissa are moved to float16's places is 256 times too small.
_FP8_FACTOR = 256.0
_MERGED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class QuantisedCache:
    """What the pages of a quantised cache mean. int8: float32 scales [N, H, block_size] beside the pages; fp8 (e4m3 as
    uint8): one scale for all keys and one for all values."""

    key_scales: torch.Tensor | float
    value_scales: torch.Tensor | float


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A step's tables on the device and what cuts it into programs; the same for all layers of one shape."""

    tables: StepTables
    config: TileConfig
    num_tokens: int
    longest_context: int


def plan_attention(
    batch: AttentionBatch, group: int, head_size: int, kind: CacheKind, chip: Chip, device: torch.device
) -> AttentionPlan:
    """Cut the step into tiles and move its tables to the device. One plan serves all layers of equal arguments."""
    longest_row = max(row.num_tokens for row in batch.rows)
    config = choose_config(chip.family, kind, head_size, group, longest_row)
    tiles = cut_tiles(batch, config.rows // group)
    tables = StepTables(sizes_of(batch, len(tiles)), device)
    tables.load(batch, tiles)
    return AttentionPlan(tables, config, batch.num_tokens, max(row.context_length for row in batch.rows))


def paged_attention_triton(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: AttentionBatch,
    chip: Chip,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    quantised: QuantisedCache | None = None,
) -> torch.Tensor:
    """The GPU's paged_attention: arguments as checked there. The plan is made at a step's first layer and kept in
    `batch.plans`."""
    group = query.shape[1] // key_pages.shape[2]
    head_size = max(query.shape[2], value_pages.shape[3])
    kind = cache_kind(key_pages.dtype)
    key = ("triton", group, head_size, kind, chip, query.device)
    plan: AttentionPlan | None = batch.plans.get(key)
    if plan is None:
        plan = batch.plans[key] = plan_attention(batch, group, head_size, kind, chip, query.device)
    output = query.new_empty(query.shape[0], query.shape[1], value_pages.shape[3])
    launch_attention(
        output, query, key_pages, value_pages, plan, chip,
        scale=scale, window=window, softcap=softcap, sinks=sinks, quantised=quantised,
    )  # fmt: skip
    return output


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


def launch_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    plan: AttentionPlan,
    chip: Chip,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    quantised: QuantisedCache | None,
) -> None:
    """Run the kernel over a plan's tables. It reads nothing back from the device, and its grid depends on the plan's
    sizes alone, so it can be captured in a graph and replayed after `plan.tables.load`."""
    num_tokens, num_heads, head = query.shape
    _, block_size, num_kv_heads, value_size = value_pages.shape
    kind = cache_kind(key_pages.dtype)
    splits = _splits(plan, num_kv_heads, num_heads // num_kv_heads, window, chip)
    partial, log_sums = output, None
    if splits.count > 1:
        partial = query.new_empty(splits.count, *output.shape, dtype=torch.float32)
        log_sums = query.new_empty(splits.count, num_tokens, num_heads, dtype=torch.float32)
    tables, config = plan.tables, plan.config
    key_factor, value_factor, key_scales, value_scales = _factors(kind, quantised)
    score = scale * key_factor
    attention_kernel[(tables.sizes.num_tiles, num_kv_heads, splits.count)](
        partial, log_sums, query, key_pages, value_pages, key_scales, value_scales, sinks,
        tables.block_tables, tables.context_lengths, tables.query_starts, tables.tile_rows, tables.tile_tokens,
        tables.sizes.pages_per_row, num_tokens, query.stride(0), query.stride(1), key_pages.stride(0),
        value_pages.stride(0), 0 if key_scales is None else key_scales.stride(0),
        0 if value_scales is None else value_scales.stride(0), splits.keys,
        0.0 if softcap is None else 2 * score / softcap * _LOG2_E, (score if softcap is None else softcap) * _LOG2_E,
        value_factor, GROUP=num_heads // num_kv_heads, BLOCK_SIZE=block_size, HEAD=head, HEAD_PADDED=_padded(head),
        VALUE=value_size, VALUE_PADDED=_padded(value_size), ROWS=config.rows, KEYS=config.keys, WINDOW=window or 0,
        SOFTCAP=softcap is not None, KIND=kind, UPCAST=_interpreted(query), num_warps=config.num_warps,
        num_stages=config.num_stages,
    )  # fmt: skip
    if log_sums is not None:
        merge_kernel[(num_tokens, num_heads)](
            output, partial, log_sums, tables.query_starts, tables.sizes.num_rows, num_tokens, splits.count,
            VALUE=value_size, VALUE_PADDED=_padded(value_size), SPLITS=_MERGED_AT_ONCE, num_warps=4,
        )  # fmt: skip


def _splits(plan: AttentionPlan, num_kv_heads: int, group: int, window: int | None, chip: Chip) -> Splits:
    longest = plan.longest_context
    if window is not None:
        longest = min(longest, window - 1 + plan.config.rows // group)
    return choose_splits(plan.tables.sizes.num_tiles * num_kv_heads, longest, chip.num_processors)


def _factors(
    kind: CacheKind, quantised: QuantisedCache | None
) -> tuple[float, float, torch.Tensor | None, torch.Tensor | None]:
    """Return what the scores and the output are multiplied by, and the scales of single keys and values."""
    if kind not in ("int8", "fp8"):
        return 1.0, 1.0, None, None
    if quantised is None:
        raise ValueError(f"pages of kind {kind} can't be read without their scales")
    keys, values = quantised.key_scales, quantised.value_scales
    if kind == "int8" and isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor):
        return 1.0, 1.0, keys, values
    if kind == "fp8" and isinstance(keys, float) and isinstance(values, float):
        return keys * _FP8_FACTOR, values * _FP8_FACTOR, None, None
    raise ValueError(f"pages of kind {kind} have scales of types {type(keys).__name__} and {type(values).__name__}")


def _padded(size: int) -> int:
    """Matrix units take powers of two from 16 on."""
    return max(16, triton.next_power_of_2(size))


def _interpreted(tensor: torch.Tensor) -> bool:
    """The interpreter keeps bfloat16 as bits and calculates with those, so the kernel converts first."""
    return tensor.device.type == "cpu"
