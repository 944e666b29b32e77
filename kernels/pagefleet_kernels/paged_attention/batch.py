"""Which queries of a packed step attend to which pages, as a value that every layer of the step shares."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Consecutive queries of one sequence; the first has position `start_position`.

    `block_table` covers every position up to the row's last one.
    """

    num_tokens: int
    start_position: int
    block_table: tuple[int, ...]

    @property
    def context_length(self) -> int:
        return self.start_position + self.num_tokens


@dataclass(frozen=True)
class AttentionBatch:
    """The rows of one step in packed order, and behind them tokens of padding, which attend to nothing: what is
    returned for those has no meaning. `plans` keeps what an implementation derives once per step (index tensors,
    masks, scratch space), so that layers share it; it belongs to that implementation."""

    rows: tuple[BatchRow, ...]
    block_size: int
    num_padding: int = 0
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows) + self.num_padding

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.num_tokens < 1 or row.start_position < 0:
                raise ValueError(f"{row.num_tokens} tokens from position {row.start_position} on are no row")
            if len(row.block_table) * self.block_size < row.context_length:
                raise ValueError(
                    f"a block table of {len(row.block_table)} blocks of {self.block_size} doesn't cover "
                    f"{row.context_length} positions"
                )
