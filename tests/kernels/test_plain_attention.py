"""The public paged attention on a CPU against its meaning, at odd sizes, with NaN in every slot that nobody may see."""

import pytest
import torch

from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow, paged_attention
from pagefleet_kernels.paged_attention.layout import gather_row, group_by_length
from pagefleet_kernels.pages import PLAIN_PAGES
from tests.kernels.attention_cases import AttentionCase, AttentionInputs, make_inputs, meaning
from tests.kernels.tolerances import ATTENTION

DECODE = ((1, 37), (1, 1), (1, 64), (1, 129), (1, 3))
MIXED = ((1, 90), (45, 77), (1, 1), (2, 131), (1, 16), (17, 17))
FAR_APART = ((1, 900), (1, 5), (1, 880), (1, 400), (1, 17), (1, 16), (1, 15))

CASES = [
    *[AttentionCase(rows, dtype) for rows in (DECODE, MIXED) for dtype in ATTENTION],
    AttentionCase(FAR_APART),
    *[AttentionCase(MIXED, block_size=size) for size in (1, 2, 8, 128)],
    *[AttentionCase(MIXED, kv_heads=heads) for heads in (1, 3, 6)],
    AttentionCase(MIXED, size=48, value_size=80),
    *[AttentionCase(MIXED, window=window) for window in (1, 7, 16, 60, 500)],
    AttentionCase(FAR_APART, window=20),
    AttentionCase(MIXED, softcap=3.0),
    AttentionCase(MIXED, sinks=True),
    AttentionCase(MIXED, torch.bfloat16, window=30, softcap=5.0, sinks=True),
]


def attended(case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    return paged_attention(
        inputs.query,
        inputs.key_pages,
        inputs.value_pages,
        inputs.batch,
        scale=inputs.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=inputs.sinks,
        kernels=PLAIN_PAGES,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_its_meaning(case: AttentionCase) -> None:
    inputs = make_inputs(case)

    difference = (attended(case, inputs).float() - meaning(case, inputs).float()).abs().max()

    assert difference <= ATTENTION[case.dtype]


def test_layers_of_a_step_share_what_was_derived_from_its_batch() -> None:
    case = AttentionCase(MIXED)
    inputs = make_inputs(case)

    first = attended(case, inputs)
    again = attended(case, inputs)

    assert torch.equal(first, again)


def test_pages_of_another_dtype_are_converted() -> None:
    case = AttentionCase(MIXED, torch.bfloat16)
    inputs = make_inputs(case)
    wide = AttentionInputs(
        inputs.query.float(), inputs.key_pages, inputs.value_pages, inputs.batch, inputs.scale, inputs.sinks
    )

    assert (attended(case, wide) - meaning(case, wide)).abs().max() <= ATTENTION[torch.float32]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(3, 6, 64)}, "expected \\[128"),
        ({"query": torch.zeros(128, 5, 64)}, "multiple"),
        ({"key_pages": torch.zeros(4, 8, 2, 64)}, "differ in size only"),
        ({"window": 0}, "at least 1"),
        ({"sinks": torch.zeros(2)}, "one for each of 6 heads"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: dict[str, object], message: str) -> None:
    inputs = make_inputs(AttentionCase(((128, 128),)))
    arguments: dict[str, object] = {
        "query": inputs.query,
        "key_pages": inputs.key_pages,
        "value_pages": inputs.value_pages,
        "batch": inputs.batch,
        "scale": 1.0,
        "kernels": PLAIN_PAGES,
    }

    with pytest.raises(ValueError, match=message):
        paged_attention(**(arguments | change))  # type: ignore[arg-type]


def test_a_block_table_must_cover_its_row() -> None:
    with pytest.raises(ValueError, match="doesn't cover 17 positions"):
        AttentionBatch((BatchRow(1, 16, (4,)),), block_size=16)


def test_rows_of_like_length_are_gathered_together_and_long_ones_apart() -> None:
    lengths = [1000, 20, 18, 990, 19, 300]
    rows = [gather_row(BatchRow(1, length - 1, tuple(range(length))), 0, 1, None) for length in lengths]

    groups = [[len(row.pages) for row in group] for group in group_by_length(rows)]

    assert groups == [[1000, 990], [300], [20, 19, 18]]


def test_a_window_reads_only_the_pages_that_it_reaches() -> None:
    row = gather_row(BatchRow(1, 99, tuple(range(50, 75))), 0, 4, window=10)

    assert (row.pages, row.first_position, row.begin, row.end) == ((72, 73, 74), 88, 90, 100)
