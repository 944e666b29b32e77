"""numba's decode attention against its meaning: odd sizes, both types, NaN where nobody may look."""

from collections.abc import Generator
from dataclasses import replace

import pytest
import torch

from pagefleet_kernels.jit import NumbaLibrary
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.jit import paged_attention_numba
from tests.kernels.attention_cases import AttentionCase, AttentionInputs, call_of, make_inputs, meaning
from tests.kernels.tolerances import ATTENTION

# Lengths around tiles of 128 positions and around the parts of 512 that a row is cut into.
DECODE = ((1, 37), (1, 1), (1, 64), (1, 129), (1, 512), (1, 513), (1, 1100))
MIXED = ((1, 90), (45, 77), (1, 1), (2, 131), (1, 16), (17, 17))
DTYPES = (torch.float32, torch.bfloat16)

CASES = [
    *[AttentionCase(rows, dtype) for rows in (DECODE, MIXED) for dtype in DTYPES],
    AttentionCase(MIXED[1:2]),
    *[AttentionCase(MIXED, block_size=size) for size in (1, 2, 8, 128)],
    *[AttentionCase(DECODE, heads=heads, kv_heads=kv) for heads, kv in ((3, 3), (7, 1), (16, 2))],
    *[AttentionCase(DECODE, dtype, size=33, value_size=71) for dtype in DTYPES],
    AttentionCase(DECODE[-2:], size=256),
    *[AttentionCase(DECODE, torch.bfloat16, window=window) for window in (1, 7, 60, 700)],
    AttentionCase(MIXED, softcap=3.0),
    AttentionCase(DECODE, softcap=0.01),
    AttentionCase(DECODE, sinks=True),
    AttentionCase(MIXED, torch.bfloat16, size=80, window=30, softcap=5.0, sinks=True),
]


@pytest.fixture(autouse=True)
def fresh_memory_is_nan() -> Generator[None]:
    """So that a place which nobody writes is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def attended(library: NumbaLibrary, case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    return paged_attention_numba(library, call_of(case, inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_its_meaning(numba_library: NumbaLibrary, case: AttentionCase) -> None:
    inputs = make_inputs(case)

    result = attended(numba_library, case, inputs)

    meant = meaning(case, inputs)
    assert result.dtype == case.dtype
    assert (result.float() - meant.float()).abs().max() <= ATTENTION[case.dtype]


def test_scores_far_apart_give_the_largest_ones_value(numba_library: NumbaLibrary) -> None:
    case = AttentionCase(((1, 700),), heads=2, kv_heads=1)
    inputs = make_inputs(case)
    wide = replace(inputs, scale=1e4)

    result = attended(numba_library, case, wide)

    meant = meaning(case, wide)
    assert (result - meant).abs().max() <= ATTENTION[torch.float32]


def test_a_row_gives_the_same_bits_alone_as_among_others(numba_library: NumbaLibrary) -> None:
    case = AttentionCase(DECODE)
    inputs = make_inputs(case)
    together = attended(numba_library, case, inputs)

    for place, row in enumerate(inputs.batch.rows):
        tokens = slice(place, place + 1)
        alone = replace(inputs, query=inputs.query[tokens], batch=AttentionBatch((row,), case.block_size))
        assert torch.equal(attended(numba_library, case, alone), together[tokens])


def test_one_thread_and_three_give_the_same_bits(numba_library: NumbaLibrary) -> None:
    case = AttentionCase(((1, 2000), (1, 1500), (1, 1)), heads=12, kv_heads=4)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(attended(numba_library, case, make_inputs(case)))
    finally:
        torch.set_num_threads(threads)

    assert torch.equal(*results)


@pytest.mark.parametrize("role", ["key_pages", "value_pages"])
def test_a_nan_that_a_query_sees_is_in_its_output_and_in_no_other(numba_library: NumbaLibrary, role: str) -> None:
    case = AttentionCase(((1, 40), (1, 600), (1, 40)))
    inputs = make_inputs(case)
    getattr(inputs, role)[inputs.batch.rows[1].block_table[33], 3] = float("nan")

    broken = attended(numba_library, case, inputs).isnan().flatten(1).any(dim=1)

    assert broken.tolist() == [False, True, False]


def test_layers_of_a_step_share_what_was_derived_from_its_batch(numba_library: NumbaLibrary) -> None:
    case = AttentionCase(MIXED)
    inputs = make_inputs(case)
    first = attended(numba_library, case, inputs)
    windowed = attended(numba_library, replace(case, window=5), inputs)

    assert torch.equal(attended(numba_library, case, inputs), first)
    assert not torch.equal(windowed, first)


def test_a_block_that_is_not_there_is_named(numba_library: NumbaLibrary) -> None:
    case = AttentionCase(((1, 20),))
    inputs = make_inputs(case)
    for table, message in (((0, len(inputs.key_pages)), "block 4 is in a block table"), ((0, -1), "block -1")):
        outside = replace(inputs, batch=AttentionBatch((BatchRow(1, 19, table),), case.block_size))
        with pytest.raises(ValueError, match=message):
            attended(numba_library, case, outside)
