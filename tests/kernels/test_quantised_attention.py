"""Attention to pages in eight bits, plain and in C++, against its meaning on the numbers that the codes stand for."""

from dataclasses import replace

import pytest
import torch

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.paged_attention import AttentionBatch, paged_attention
from pagefleet_kernels.pages import PLAIN_PAGES, CppPages
from pagefleet_kernels.quantised_kv import CacheScales, Int8Scales, dequantise_pages
from tests.kernels.attention_cases import AttentionCase, AttentionInputs, make_inputs, meaning
from tests.kernels.quantised_cases import quantise
from tests.kernels.tolerances import ATTENTION

STORED = (torch.int8, torch.uint8)
DECODE = ((1, 37), (1, 1), (1, 64), (1, 129), (1, 513), (1, 1100))
MIXED = ((1, 90), (45, 77), (1, 1), (2, 131), (1, 16), (17, 17), (7, 300))

CASES = [
    *[AttentionCase(rows, dtype) for rows in (DECODE, MIXED) for dtype in ATTENTION],
    *[AttentionCase(MIXED, torch.bfloat16, block_size=size) for size in (1, 2, 8, 128)],
    *[AttentionCase(MIXED, torch.bfloat16, heads=heads, kv_heads=kv) for heads, kv in ((3, 3), (7, 1), (16, 2))],
    *[AttentionCase(MIXED, dtype, size=36, value_size=72) for dtype in ATTENTION],
    *[AttentionCase(DECODE[-2:] + MIXED[-2:], dtype, size=256) for dtype in (torch.float32, torch.bfloat16)],
    *[AttentionCase(DECODE + MIXED, torch.bfloat16, window=window) for window in (1, 7, 60, 300)],
    AttentionCase(DECODE + MIXED, window=60, block_size=4),
    AttentionCase(MIXED, softcap=3.0),
    AttentionCase(MIXED, sinks=True),
    AttentionCase(DECODE, torch.bfloat16, size=80, window=270, softcap=5.0, sinks=True),
]


@pytest.fixture(scope="session")
def expected() -> dict[tuple[AttentionCase, torch.dtype], torch.Tensor]:
    """The reference's outputs, which the implementations share."""
    return {}


def attended(
    library: CpuLibrary | None,
    case: AttentionCase,
    inputs: AttentionInputs,
    pages: tuple[torch.Tensor, torch.Tensor, CacheScales],
) -> torch.Tensor:
    kernels = PLAIN_PAGES if library is None else CppPages(library)
    assert kernels.why_plain(inputs.query, pages[0], pages[1]) is None
    return paged_attention(
        inputs.query,
        pages[0],
        pages[1],
        inputs.batch,
        scale=inputs.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=inputs.sinks,
        scales=pages[2],
        kernels=kernels,
    )


def difference_from_meaning(
    library: CpuLibrary | None,
    case: AttentionCase,
    stored: torch.dtype,
    expected: dict[tuple[AttentionCase, torch.dtype], torch.Tensor],
) -> float:
    inputs = make_inputs(case)
    pages = quantise(inputs, stored)
    if (case, stored) not in expected:
        keys, values = dequantise_pages(*pages)
        expected[case, stored] = meaning(case, replace(inputs, key_pages=keys, value_pages=values)).float()
    return float((attended(library, case, inputs, pages).float() - expected[case, stored]).abs().max())


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_attention_reads_codes_as_what_they_stand_for(
    library: CpuLibrary,
    case: AttentionCase,
    stored: torch.dtype,
    expected: dict[tuple[AttentionCase, torch.dtype], torch.Tensor],
) -> None:
    assert difference_from_meaning(library, case, stored, expected) <= ATTENTION[case.dtype]


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_plain_attention_reads_codes_as_what_they_stand_for(
    case: AttentionCase, stored: torch.dtype, expected: dict[tuple[AttentionCase, torch.dtype], torch.Tensor]
) -> None:
    assert difference_from_meaning(None, case, stored, expected) <= ATTENTION[case.dtype]


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_gives_the_same_bits_alone_as_among_others(
    library: CpuLibrary, dtype: torch.dtype, stored: torch.dtype
) -> None:
    case = AttentionCase(DECODE + MIXED, dtype)
    inputs = make_inputs(case)
    pages = quantise(inputs, stored)
    together = attended(library, case, inputs, pages)

    first = 0
    for row in inputs.batch.rows:
        tokens = slice(first, first + row.num_tokens)
        alone = replace(inputs, query=inputs.query[tokens], batch=AttentionBatch((row,), case.block_size))
        assert torch.equal(attended(library, case, alone, pages), together[tokens])
        first += row.num_tokens


@pytest.mark.parametrize("of", ["keys", "values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_scale_that_is_not_a_number_is_in_the_output_of_who_sees_it_and_in_no_other(
    library: CpuLibrary, dtype: torch.dtype, of: str
) -> None:
    case = AttentionCase(((1, 40), (1, 40), (20, 40)), dtype)
    inputs = make_inputs(case)
    pages = quantise(inputs, torch.int8)
    assert isinstance(pages[2], Int8Scales)
    getattr(pages[2], of)[inputs.batch.rows[1].block_table[0], :, 3] = float("nan")

    broken = attended(library, case, inputs, pages).isnan().flatten(1).all(dim=1)

    assert broken.tolist() == [False, True, *[False] * 20]


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_codes_without_scales_are_refused(stored: torch.dtype) -> None:
    inputs = make_inputs(AttentionCase(DECODE))
    keys, values, _ = quantise(inputs, stored)

    with pytest.raises(ValueError, match="mean nothing without scales"):
        paged_attention(inputs.query, keys, values, inputs.batch, scale=1.0, kernels=PLAIN_PAGES)


def test_head_sizes_that_words_of_codes_do_not_fill_are_left_to_plain_pytorch(library: CpuLibrary) -> None:
    case = AttentionCase(MIXED, size=34)
    inputs = make_inputs(case)
    pages = quantise(inputs, torch.int8)

    reason = CppPages(library).why_plain(inputs.query, pages[0], pages[1])
    assert reason is not None and reason.endswith(
        "multiples of 4, not keys of 34 and values of 34 stored as torch.int8"
    )
    plain, chosen = (
        paged_attention(
            inputs.query, pages[0], pages[1], inputs.batch, scale=inputs.scale, scales=pages[2], kernels=kernels
        )
        for kernels in (PLAIN_PAGES, CppPages(library))
    )
    assert torch.equal(plain, chosen)
