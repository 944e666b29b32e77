"""How a step's rows are cut into tiles and splits, and the tables that say so to a kernel.

Made once per step on the host and shared by all layers. Tables may be larger than the step: tiles that are not there
hold -1, so a grid of fixed size fits every step (CUDA graphs).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from pagefleet_kernels.paged_attention.batch import AttentionBatch

# Below this many keys a split costs more in merging than it gains.
MIN_SPLIT_KEYS = 256
# A split is whole tiles of keys.
_SPLIT_STEP = 64
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


@dataclass(frozen=True, slots=True)
class Splits:
    """Each tile's keys in `count` ranges of `keys`; a range may be empty."""

    count: int
    keys: int


def choose_splits(num_programs: int, longest_range: int, num_processors: int) -> Splits:
    """Return as many splits as it takes to fill the chip twice, none shorter than MIN_SPLIT_KEYS.

    `num_programs` is tiles times key-value heads, `longest_range` the most keys that a tile reads.
    """
    wanted = -(-2 * num_processors // num_programs)
    count = max(1, min(wanted, longest_range // MIN_SPLIT_KEYS))
    keys = -(-longest_range // (count * _SPLIT_STEP)) * _SPLIT_STEP
    return Splits(count=max(1, -(-longest_range // keys)), keys=keys)


@dataclass(frozen=True, slots=True)
class TableSizes:
    num_rows: int
    num_tiles: int
    pages_per_row: int


def sizes_of(batch: AttentionBatch, num_tiles: int) -> TableSizes:
    return TableSizes(len(batch.rows), num_tiles, max(len(row.block_table) for row in batch.rows))


class StepTables:
    """The tables of a step on the device, sections of one buffer that `load` fills with one copy.

    A captured graph keeps reading this memory, so its owner loads each step into the same object.
    """

    def __init__(self, sizes: TableSizes, device: torch.device) -> None:
        lengths = (
            sizes.num_rows * sizes.pages_per_row,
            sizes.num_rows,
            sizes.num_rows + 1,
            sizes.num_tiles,
            sizes.num_tiles,
        )
        padded = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths]
        self.sizes = sizes
        self._buffer = torch.full((sum(padded),), -1, dtype=torch.int32, device=device)
        views = [part[:length] for part, length in zip(torch.split(self._buffer, padded), lengths, strict=True)]
        self._padded = padded
        self.block_tables = views[0].view(sizes.num_rows, sizes.pages_per_row)
        self.context_lengths, self.query_starts, self.tile_rows, self.tile_tokens = views[1:]

    def load(self, batch: AttentionBatch, tiles: Sequence[Tile]) -> None:
        """Replace the tables' content. Raises ValueError where the step is larger than the tables."""
        sizes = sizes_of(batch, len(tiles))
        if (
            sizes.num_rows > self.sizes.num_rows
            or sizes.num_tiles > self.sizes.num_tiles
            or sizes.pages_per_row > self.sizes.pages_per_row
        ):
            raise ValueError(f"the step needs {sizes} but the tables hold {self.sizes}")
        width = self.sizes.pages_per_row
        missing_rows = self.sizes.num_rows - sizes.num_rows
        sections = (
            [page for row in batch.rows for page in (*row.block_table, *[0] * (width - len(row.block_table)))],
            [row.context_length for row in batch.rows],
            [*accumulate((row.num_tokens for row in batch.rows), initial=0), *[batch.num_tokens] * missing_rows],
            [tile.row for tile in tiles],
            [tile.first_token for tile in tiles],
        )
        packed = [
            number
            for section, length in zip(sections, self._padded, strict=True)
            for number in (*section, *[-1] * (length - len(section)))
        ]
        host = torch.tensor(packed, dtype=torch.int32)
        if self._buffer.is_cuda:
            host = host.pin_memory()
        self._buffer.copy_(host, non_blocking=True)
