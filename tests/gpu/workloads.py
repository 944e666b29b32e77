"""Steps to be timed, as values, and their tensors on a device. Shapes are those of an 8B model, random data."""

from dataclasses import dataclass, field

import torch

from pagefleet_kernels.kv_write.gpu import kv_write_triton
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.paged_attention.gpu import AttentionPlan, cache_kind, launch_attention, plan_attention
from pagefleet_kernels.quantised_kv import CacheScales, Fp8Scales, Int8Scales


@dataclass(frozen=True, slots=True)
class Heads:
    query: int = 32
    kv: int = 8
    size: int = 128


@dataclass(frozen=True, slots=True)
class Step:
    """`rows` are (queries, context length); `stored` is the pages' dtype."""

    name: str
    rows: tuple[tuple[int, int], ...]
    heads: Heads = field(default_factory=Heads)
    stored: torch.dtype = torch.bfloat16
    block_size: int = 16

    @property
    def num_tokens(self) -> int:
        return sum(queries for queries, _ in self.rows)

    @property
    def bytes_read(self) -> int:
        """Keys, values and scales of every context, once."""
        per_token = 2 * self.heads.kv * (self.heads.size * self.stored.itemsize + 4 * (self.stored == torch.int8))
        return per_token * sum(context for _, context in self.rows)

    @property
    def operations(self) -> int:
        """Multiplications and additions of both products, of what is seen alone."""
        seen = sum(queries * context - queries * (queries - 1) // 2 for queries, context in self.rows)
        return 4 * self.heads.query * self.heads.size * seen


@dataclass(frozen=True, slots=True)
class PreparedStep:
    step: Step
    query: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    scales: CacheScales | None
    batch: AttentionBatch
    plan: AttentionPlan
    chip: Chip
    output: torch.Tensor

    def run(self) -> None:
        scale = self.step.heads.size**-0.5
        call = AttentionCall(self.query, self.key_pages, self.value_pages, self.batch, scale=scale, scales=self.scales)
        launch_attention(self.output, call, self.plan, self.chip)


def prepare(step: Step, chip: Chip, device: torch.device) -> PreparedStep:
    """Fill a cache of shuffled pages through kv_write and cut the step."""
    heads = step.heads
    lengths = [-(-context // step.block_size) for _, context in step.rows]
    shuffled = torch.randperm(sum(lengths), generator=torch.Generator().manual_seed(1)).tolist()
    rows = []
    for (queries, context), length in zip(step.rows, lengths, strict=True):
        rows.append(BatchRow(queries, context - queries, tuple(shuffled[:length])))
        shuffled = shuffled[length:]
    batch = AttentionBatch(tuple(rows), step.block_size)
    # Two layers in a page, of which the second is read: the stride between pages is that of block-major memory.
    pages = torch.empty(sum(lengths), 4, step.block_size, heads.kv, heads.size, dtype=step.stored, device=device)
    key_pages, value_pages = pages[:, 2], pages[:, 3]
    scales = _scales(step, sum(lengths), device)
    _fill(step, key_pages, value_pages, scales)
    query = torch.randn(step.num_tokens, heads.query, heads.size, dtype=torch.bfloat16, device=device)
    kind = cache_kind(step.stored)
    plan = plan_attention(batch, heads.query // heads.kv, heads.size, kind, chip, device)
    return PreparedStep(
        step, query, key_pages, value_pages, scales, batch, plan, chip, torch.full_like(query, float("nan"))
    )


def _scales(step: Step, num_pages: int, device: torch.device) -> CacheScales | None:
    if step.stored == torch.int8:
        both = torch.zeros(num_pages, 2, step.heads.kv, step.block_size, device=device)
        return Int8Scales(both[:, 0], both[:, 1])
    return Fp8Scales(0.01, 0.01) if step.stored == torch.uint8 else None


def _fill(step: Step, key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales | None) -> None:
    slots = torch.arange(key_pages.shape[0] * step.block_size, device=key_pages.device)
    for part in torch.split(slots, 8192):
        shape = (len(part), step.heads.kv, step.heads.size)
        key, value = (torch.randn(shape, dtype=torch.bfloat16, device=part.device) for _ in range(2))
        kv_write_triton(key, value, key_pages, value_pages, part, scales)
