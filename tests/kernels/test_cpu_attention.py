"""The C++ attention against its meaning, for each instruction set: odd sizes, every type, NaN where nobody may look."""

from dataclasses import replace

import pytest
import torch

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from tests.kernels.attention_cases import AttentionCase, AttentionInputs, call_of, make_inputs, meaning
from tests.kernels.tolerances import ATTENTION

# Lengths around tiles of 16, 32 and 128 positions and around the parts of 512 that a decode row is cut into.
DECODE = ((1, 37), (1, 1), (1, 64), (1, 129), (1, 511), (1, 513), (1, 1100))
MIXED = ((1, 90), (45, 77), (1, 1), (2, 131), (1, 16), (17, 17), (7, 300))

CASES = [
    *[AttentionCase(rows, dtype) for rows in (DECODE, MIXED) for dtype in ATTENTION],
    *[AttentionCase(MIXED, torch.bfloat16, block_size=size) for size in (1, 2, 32, 128)],
    *[AttentionCase(MIXED, heads=heads, kv_heads=kv) for heads, kv in ((3, 3), (7, 1), (16, 2))],
    *[AttentionCase(MIXED, dtype, size=34, value_size=72) for dtype in ATTENTION],
    *[AttentionCase(DECODE[-2:] + MIXED[-2:], dtype, size=256) for dtype in (torch.float32, torch.bfloat16)],
    *[AttentionCase(DECODE + MIXED, torch.bfloat16, window=window) for window in (1, 7, 60, 300)],
    AttentionCase(MIXED, softcap=3.0),
    AttentionCase(MIXED, sinks=True),
    AttentionCase(DECODE, torch.bfloat16, size=80, window=270, softcap=5.0, sinks=True),
    AttentionCase(MIXED, torch.bfloat16, size=96, window=30, softcap=5.0, sinks=True),
]


def attended(library: CpuLibrary, case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    return paged_attention_cpu(library, call_of(case, inputs))


@pytest.fixture(scope="session")
def expected() -> dict[AttentionCase, torch.Tensor]:
    """The reference's outputs by case, which the instruction sets share."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_its_meaning(
    library: CpuLibrary, case: AttentionCase, expected: dict[AttentionCase, torch.Tensor]
) -> None:
    inputs = make_inputs(case)
    if case not in expected:
        expected[case] = meaning(case, inputs)

    difference = (attended(library, case, inputs).float() - expected[case].float()).abs().max()

    assert difference <= ATTENTION[case.dtype]


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_float32_queries_read_narrow_pages_without_rounding_themselves(
    library: CpuLibrary, stored: torch.dtype
) -> None:
    case = AttentionCase(MIXED, stored)
    inputs = make_inputs(case)
    wide = replace(inputs, query=inputs.query.float())

    result = attended(library, case, wide)

    reference = meaning(case, wide)
    assert (result - reference).abs().max() <= ATTENTION[torch.float32]


@pytest.mark.parametrize("dtype", ATTENTION)
def test_a_row_gives_the_same_bits_alone_as_among_others(library: CpuLibrary, dtype: torch.dtype) -> None:
    case = AttentionCase(DECODE + MIXED, dtype)
    inputs = make_inputs(case)
    together = attended(library, case, inputs)

    first = 0
    for row in inputs.batch.rows:
        tokens = slice(first, first + row.num_tokens)
        alone = replace(inputs, query=inputs.query[tokens], batch=AttentionBatch((row,), case.block_size))
        assert torch.equal(attended(library, case, alone), together[tokens])
        first += row.num_tokens


def test_one_thread_and_two_give_the_same_bits(library: CpuLibrary) -> None:
    case = AttentionCase(((1, 2000), (1, 1500), (60, 500)), heads=12, kv_heads=4)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(attended(library, case, make_inputs(case)))
    finally:
        torch.set_num_threads(threads)

    assert torch.equal(*results)


def test_a_nan_that_a_query_sees_is_in_its_output_and_in_no_other(library: CpuLibrary) -> None:
    case = AttentionCase(((1, 40), (1, 40), (20, 40)))
    inputs = make_inputs(case)
    inputs.value_pages[inputs.batch.rows[1].block_table[0], 3] = float("nan")

    broken = attended(library, case, inputs).isnan().flatten(1).any(dim=1)

    assert broken.tolist() == [False, True, *[False] * 20]


@pytest.mark.parametrize("size", [3, 258])
def test_head_sizes_beyond_the_kernel_are_named(library: CpuLibrary, size: int) -> None:
    case = AttentionCase(DECODE, size=size)

    with pytest.raises(ValueError, match="even head sizes up to 256"):
        attended(library, case, make_inputs(case))


def test_a_block_that_is_not_there_is_named(library: CpuLibrary) -> None:
    case = AttentionCase(((1, 20),))
    inputs = make_inputs(case)
    for table, message in (((0, len(inputs.key_pages)), "block 4 is in a block table"), ((0, -1), "block -1")):
        outside = replace(inputs, batch=AttentionBatch((BatchRow(1, 19, table),), case.block_size))
        with pytest.raises(ValueError, match=message):
            attended(library, case, outside)


def test_memory_off_its_types_alignment_is_refused(library: CpuLibrary) -> None:
    case = AttentionCase(((1, 20),))
    inputs = make_inputs(case)
    memory = torch.zeros(inputs.query.numel() * 4 + 1, dtype=torch.uint8)
    shifted = torch.frombuffer(memory.numpy()[1:], dtype=torch.float32).view(inputs.query.shape)

    with pytest.raises(ValueError, match="no multiple of 4"):
        attended(library, case, replace(inputs, query=shifted))
