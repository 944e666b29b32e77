"""Steps of paged attention at odd sizes, as values, and what a kernel must give for them.

Every slot that no query may see is NaN (of quantised pages: its scale, or the largest code).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.reference import paged_attention_reference


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """`rows` are (queries, context length). A page holds `layers` layers; the case reads the last."""

    rows: tuple[tuple[int, int], ...]
    dtype: torch.dtype = torch.float32
    heads: int = 6
    kv_heads: int = 2
    size: int = 64
    value_size: int | None = None
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    layers: int = 2

    def __str__(self) -> str:
        parts = [
            str(self.dtype).removeprefix("torch."),
            f"{self.heads}over{self.kv_heads}",
            f"size{self.size}",
            f"block{self.block_size}",
            "+".join(f"{queries}of{context}" for queries, context in self.rows),
        ]
        parts += [name for name in ("window", "softcap", "sinks") if getattr(self, name)]
        return "-".join(parts)


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    query: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    batch: AttentionBatch
    scale: float
    sinks: torch.Tensor | None


def make_inputs(case: AttentionCase) -> AttentionInputs:
    generator = torch.Generator().manual_seed(hash((case.rows, case.size, case.block_size)) % 2**31)
    value_size = case.value_size or case.size
    batch = _batch(case, generator)
    num_pages = 2 + sum(len(row.block_table) for row in batch.rows)
    place = case.block_size * case.kv_heads
    layer = place * (case.size + value_size)
    buffer = torch.full((num_pages, case.layers * layer), float("nan"), dtype=case.dtype)
    last = buffer[:, (case.layers - 1) * layer :]
    keys = _pages(last, 0, case, case.size)
    values = _pages(last, place * case.size, case, value_size)
    for row in batch.rows:
        begin = 0 if case.window is None else max(0, row.start_position + 1 - case.window)
        seen = torch.arange(begin, row.context_length)
        page = torch.tensor(row.block_table)[seen // case.block_size]
        keys[page, seen % case.block_size] = _normal((len(seen), case.kv_heads, case.size), case.dtype, generator)
        values[page, seen % case.block_size] = _normal((len(seen), case.kv_heads, value_size), case.dtype, generator)
    # A slice of wider rows: the fused projection's output has such strides.
    wide = _normal((batch.num_tokens, case.heads, 2 * case.size), case.dtype, generator)
    return AttentionInputs(
        query=wide[..., : case.size],
        key_pages=keys,
        value_pages=values,
        batch=batch,
        scale=1.3 * case.size**-0.5,
        sinks=_normal((case.heads,), torch.float32, generator) if case.sinks else None,
    )


def call_of(case: AttentionCase, inputs: AttentionInputs) -> AttentionCall:
    """Return what the kernels of a CPU are called with."""
    return AttentionCall(
        inputs.query,
        inputs.key_pages,
        inputs.value_pages,
        inputs.batch,
        scale=inputs.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=inputs.sinks,
    )


def meaning(case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    """Return what every kernel must give."""
    return paged_attention_reference(
        inputs.query,
        inputs.key_pages,
        inputs.value_pages,
        inputs.batch,
        scale=inputs.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=inputs.sinks,
    )


def _pages(last: torch.Tensor, offset: int, case: AttentionCase, size: int) -> torch.Tensor:
    flat = last[:, offset : offset + case.block_size * case.kv_heads * size]
    return flat.view(-1, case.block_size, case.kv_heads, size)


def _batch(case: AttentionCase, generator: torch.Generator) -> AttentionBatch:
    lengths = [-(-context // case.block_size) for _, context in case.rows]
    shuffled = (1 + torch.randperm(sum(lengths), generator=generator)).tolist()
    rows = []
    for (queries, context), length in zip(case.rows, lengths, strict=True):
        table, shuffled = tuple(shuffled[:length]), shuffled[length:]
        rows.append(BatchRow(num_tokens=queries, start_position=context - queries, block_table=table))
    return AttentionBatch(rows=tuple(rows), block_size=case.block_size)


def _normal(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).to(dtype)
