"""How a step's rows are cut into tiles and splits, and the tables that say so to a kernel.

Made once per step on the host and shared by all layers. Tables may be larger than the step: tiles that are not there
hold -1, so a grid of fixed size fits every step (CUDA graphs).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from pagefleet_kernels.paged_attention.batch import AttentionBatch

# Below this many keys a split costs more in merging than it gains.
MIN_SPLIT_KEYS = 256
# Every section of the tables begins at a multiple of this many numbers: kernels assume pointers of 16 bytes.
_ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive queries of one row, from the row's query `first_token` on."""

    row: int
    first_token: int


def cut_tiles(batch: AttentionBatch, tokens_per_tile: int) -> list[Tile]:
    """Return the tiles of a step, those that see most keys first: what starts last should be short."""
    tiles = [
        (-(row.start_position + min(first + tokens_per_tile, row.num_tokens)), Tile(index, first))
        for index, row in enumerate(batch.rows)
        for first in range(0, row.num_tokens, tokens_per_tile)
    ]
    return [tile for _, tile in sorted(tiles, key=lambda pair: pair[0])]


def choose_splits(num_programs: int, longest_range: int, num_processors: int) -> int:
    """Return into how many ranges a tile's keys are cut: as many as it takes to fill the chip twice, none shorter than
    MIN_SPLIT_KEYS. The kernel cuts; a short tile's last ranges are empty.

    `num_programs` is tiles times key-value heads, `longest_range` the most keys that a tile reads.
    """
    wanted = -(-2 * num_processors // num_programs)
    return max(1, min(wanted, longest_range // MIN_SPLIT_KEYS))


@dataclass(frozen=True, slots=True)
class TableSizes:
    num_rows: int
    num_tiles: int
    pages_per_row: int


def sizes_of(batch: AttentionBatch, num_tiles: int) -> TableSizes:
    return TableSizes(len(batch.rows), num_tiles, max((len(row.block_table) for row in batch.rows), default=0))


class StepTables:
    """The tables of a step on the device, filled by `load`. Until then they hold no tile.

    A captured graph keeps reading this memory, so its owner loads each step into the same object. Of the block tables
    only what the step has is replaced: a kernel reads no further than a row's context.
    """

    def __init__(self, sizes: TableSizes, device: torch.device) -> None:
        lengths = (sizes.num_rows, sizes.num_rows + 1, sizes.num_tiles, sizes.num_tiles)
        self.sizes = sizes
        self._padded = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths]
        self._numbers = torch.full((sum(self._padded),), -1, dtype=torch.int32, device=device)
        parts = torch.split(self._numbers, self._padded)
        self.context_lengths, self.query_starts, self.tile_rows, self.tile_tokens = (
            part[:length] for part, length in zip(parts, lengths, strict=True)
        )
        self.block_tables = torch.zeros(sizes.num_rows, sizes.pages_per_row, dtype=torch.int32, device=device)

    def load(self, batch: AttentionBatch, tiles: Sequence[Tile]) -> None:
        """Replace the tables' content. Raises ValueError where the step is larger than the tables."""
        sizes = sizes_of(batch, len(tiles))
        if (
            sizes.num_rows > self.sizes.num_rows
            or sizes.num_tiles > self.sizes.num_tiles
            or sizes.pages_per_row > self.sizes.pages_per_row
        ):
            raise ValueError(f"the step needs {sizes} but the tables hold {self.sizes}")
        starts = [*accumulate((row.num_tokens for row in batch.rows), initial=0)]
        sections = (
            [row.context_length for row in batch.rows],
            [*starts, *starts[-1:] * (self.sizes.num_rows - sizes.num_rows)],
            [tile.row for tile in tiles],
            [tile.first_token for tile in tiles],
        )
        numbers = array("i")
        for section, length in zip(sections, self._padded, strict=True):
            numbers.extend((*section, *[-1] * (length - len(section))))
        _send(numbers, self._numbers)
        pages = array("i")
        for row in batch.rows:
            pages.extend(row.block_table)
            pages.extend([0] * (sizes.pages_per_row - len(row.block_table)))
        if pages:
            _send(pages, self.block_tables[: sizes.num_rows, : sizes.pages_per_row])


def _send(numbers: "array[int]", target: torch.Tensor) -> None:
    """Copy to the device without waiting for it."""
    host = torch.frombuffer(numbers, dtype=torch.int32).view(target.shape)
    target.copy_(host.pin_memory() if target.is_cuda else host, non_blocking=True)
