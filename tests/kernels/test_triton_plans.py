"""What the host decides for the kernels: tiles, splits, tables, configurations, waves of copies."""

import random

import pytest
import torch

from pagefleet_kernels.page_copy.waves import copy_waves
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.configs import FAMILIES, Chip, amd_family, choose_config, nvidia_family
from pagefleet_kernels.paged_attention.gpu import plan_attention
from pagefleet_kernels.paged_attention.tiles import (
    StepTables,
    TableSizes,
    Tile,
    choose_splits,
    cut_tiles,
)

CPU = torch.device("cpu")


def _batch(*rows: tuple[int, int]) -> AttentionBatch:
    """Rows of (queries, context length) in pages of 16 that are numbered in order from 1 on."""
    made, next_page = [], 1
    for queries, context in rows:
        length = -(-context // 16)
        table = tuple(range(next_page, next_page + length))
        made.append(BatchRow(queries, context - queries, table))
        next_page += length
    return AttentionBatch(tuple(made), block_size=16)


def test_tiles_cover_every_query_once_and_begin_with_the_longest() -> None:
    batch = _batch((1, 90), (45, 77), (1, 1))
    assert cut_tiles(batch, 21) == [Tile(0, 0), Tile(1, 42), Tile(1, 21), Tile(1, 0), Tile(2, 0)]


@pytest.mark.parametrize(
    ("programs", "longest", "processors", "expected"),
    [
        (64, 32768, 132, 5),
        (8, 32768, 132, 33),
        (8, 700, 132, 2),
        (8, 511, 132, 1),
        (264, 32768, 132, 1),
        (1, 1, 1, 1),
    ],
)
def test_splits_fill_the_chip_twice_and_stay_long_enough(
    programs: int, longest: int, processors: int, expected: int
) -> None:
    assert choose_splits(programs, longest, processors) == expected


def test_one_query_of_a_group_takes_the_decode_tile_and_a_chunk_the_prefill_tile() -> None:
    assert choose_config("sm_90", "half", 128, group=4, longest_row=1).rows == 16
    assert choose_config("sm_90", "half", 128, group=4, longest_row=4).rows == 16
    assert choose_config("sm_90", "half", 128, group=4, longest_row=5).rows == 128
    # A group that is larger than the decode tile is a prefill tile's work.
    assert choose_config("sm_90", "half", 128, group=71, longest_row=1).rows == 128


@pytest.mark.parametrize(("head_size", "group", "problem"), [(264, 1, "head size 264"), (128, 129, "129 query heads")])
def test_shapes_that_fit_no_tile_are_refused_with_the_number(head_size: int, group: int, problem: str) -> None:
    for family in FAMILIES:
        with pytest.raises(ValueError, match=problem):
            choose_config(family, "half", head_size, group, longest_row=1)


def test_each_chip_takes_the_tiles_of_its_family() -> None:
    capabilities = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert [nvidia_family(*capability) for capability in capabilities] == ["sm_80", "sm_80", "sm_90", "sm_100", "sm_80"]
    assert amd_family("gfx942:sramecc+:xnack-") == "gfx942"


def test_a_chip_without_tiles_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"capability 7\.5"):
        nvidia_family(7, 5)
    with pytest.raises(ValueError, match="gfx1100"):
        amd_family("gfx1100")


def test_tables_hold_the_step_and_mark_what_is_not_there() -> None:
    tables = StepTables(TableSizes(num_rows=3, num_tiles=5, pages_per_row=4), CPU)
    batch = _batch((1, 33), (20, 20))
    tables.load(batch, cut_tiles(batch, 16))
    assert tables.block_tables[:2].tolist() == [[1, 2, 3, 0], [4, 5, 0, 0]]
    assert tables.context_lengths[:2].tolist() == [33, 20]
    assert tables.query_starts.tolist() == [0, 1, 21, 21]
    assert tables.tile_rows.tolist() == [0, 1, 1, -1, -1]
    assert tables.tile_tokens[:3].tolist() == [0, 16, 0]


def test_a_smaller_step_leaves_nothing_of_the_one_before_in_the_tables() -> None:
    sizes = TableSizes(num_rows=3, num_tiles=5, pages_per_row=4)
    used, fresh = StepTables(sizes, CPU), StepTables(sizes, CPU)
    used.load(_batch((1, 33), (20, 20), (1, 5)), [Tile(0, 0), Tile(1, 16), Tile(1, 0), Tile(2, 0)])
    for tables in (used, fresh):
        tables.load(_batch((1, 3)), [Tile(0, 0)])
    for name in ("context_lengths", "query_starts", "tile_rows", "tile_tokens"):
        assert torch.equal(getattr(used, name), getattr(fresh, name)), name
    assert used.block_tables[0, 0] == fresh.block_tables[0, 0] == 1


@pytest.mark.parametrize("rows", [((1, 3),) * 4, ((90, 90),), ((1, 65),)], ids=["rows", "tiles", "pages"])
def test_a_step_that_is_larger_than_its_tables_is_refused(rows: tuple[tuple[int, int], ...]) -> None:
    tables = StepTables(TableSizes(num_rows=3, num_tiles=5, pages_per_row=4), CPU)
    batch = _batch(*rows)
    with pytest.raises(ValueError, match="but the tables hold"):
        tables.load(batch, cut_tiles(batch, 16))


def test_every_table_begins_where_kernels_may_read_whole_vectors() -> None:
    plan = plan_attention(_batch((1, 33), (21, 20 + 21), (1, 9)), 3, 64, "half", Chip("sm_90", 1), CPU)
    tables = plan.tables
    for table in (tables.block_tables, tables.context_lengths, tables.query_starts, tables.tile_rows):
        assert table.data_ptr() % 16 == 0


def test_waves_give_what_copies_in_order_give() -> None:
    draw = random.Random(2)
    for _ in range(300):
        copies = [(draw.randrange(6), draw.randrange(6)) for _ in range(draw.randrange(8))]
        in_order, in_waves = list("abcdef"), list("abcdef")
        for source, target in copies:
            in_order[target] = in_order[source]
        for wave in copy_waves(copies):
            before = list(in_waves)
            for source, target in wave:
                in_waves[target] = before[source]
            targets = [target for _, target in wave]
            assert len(set(targets)) == len(targets)
            assert not {source for source, _ in wave} & {target for source, target in wave if source != target}
        assert in_waves == in_order


def test_independent_copies_are_one_wave() -> None:
    assert copy_waves([(0, 5), (0, 6), (1, 7)]) == [[(0, 5), (0, 6), (1, 7)]]
