"""From a plan's rows to the tensors of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_runtime.plan import Row


@dataclass(frozen=True, slots=True)
class PackedStep:
    """Rows one after the other, decode rows first: a group of them is then one slice of the queries. Tensors are the
    host's; whoever runs the step moves them."""

    rows: tuple[Row, ...]
    first_tokens: tuple[int, ...]  # where each row begins
    token_ids: torch.Tensor  # [1, T]
    positions: torch.Tensor  # [1, T]
    slots: torch.Tensor  # [T]
    batch: AttentionBatch


def pack(rows: Sequence[Row], block_size: int) -> PackedStep:
    """Lay the rows out as one packed batch."""
    ordered = tuple(sorted(rows, key=_packing_order))
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    first_tokens: list[int] = []
    for row in ordered:
        first_tokens.append(len(token_ids))
        token_ids += row.token_ids
        own = range(row.start_position, row.start_position + len(row.token_ids))
        positions += own
        slots += [row.block_table[p // block_size] * block_size + p % block_size for p in own]
    return PackedStep(
        rows=ordered,
        first_tokens=tuple(first_tokens),
        token_ids=torch.tensor([token_ids]),
        positions=torch.tensor([positions]),
        slots=torch.tensor(slots),
        batch=AttentionBatch(
            tuple(BatchRow(len(row.token_ids), row.start_position, row.block_table) for row in ordered), block_size
        ),
    )


def _packing_order(row: Row) -> tuple[bool, int]:
    return len(row.token_ids) > 1, -row.start_position
