"""A cache in eight bits: what is read back, and what is refused."""

import pytest
import torch

from pagefleet_kernels.quantised_kv import (
    CacheScales,
    Fp8Scales,
    Int8Scales,
    dequantise_pages,
    quantise_fp8,
    quantise_int8,
    write_quantised_reference,
)


def _pages(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(5, 8, 3, 32, dtype=dtype)


def _int8_scales() -> Int8Scales:
    return Int8Scales(torch.zeros(5, 3, 8), torch.zeros(5, 3, 8))


@pytest.mark.parametrize(
    ("dtype", "scales", "tolerance"),
    [(torch.int8, _int8_scales(), 0.02), (torch.uint8, Fp8Scales(0.02, 0.01), 0.15)],
    ids=["int8", "fp8"],
)
def test_what_was_written_is_read_back_within_the_rounding(
    dtype: torch.dtype, scales: CacheScales, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    key, value = (torch.randn(11, 3, 32, generator=generator) for _ in range(2))
    slots = torch.randperm(40, generator=generator)[:11]
    key_pages, value_pages = _pages(dtype), _pages(dtype)
    write_quantised_reference(key, value, key_pages, value_pages, scales, slots)
    keys, values = dequantise_pages(key_pages, value_pages, scales)
    for new, read in ((key, keys), (value, values)):
        difference = (read[slots // 8, slots % 8] - new).abs().max()
        assert 0 < difference <= tolerance


def test_rows_of_padding_are_written_nowhere() -> None:
    key_pages, value_pages, scales = _pages(torch.int8), _pages(torch.int8), _int8_scales()
    new = torch.ones(2, 3, 32)
    write_quantised_reference(new, new, key_pages, value_pages, scales, torch.tensor([-1, -1]))
    assert not key_pages.any() and not value_pages.any() and not scales.keys.any()


def test_a_row_of_zeros_has_scale_zero_and_comes_back_as_zeros() -> None:
    codes, scale = quantise_int8(torch.zeros(2, 4))
    assert not codes.any() and not scale.any()


def test_numbers_beyond_the_largest_code_become_it() -> None:
    codes = quantise_fp8(torch.tensor([1e6, -1e6]), scale=1.0)
    assert codes.view(torch.float8_e4m3fn).float().tolist() == [448.0, -448.0]


@pytest.mark.parametrize(
    ("pages", "scales", "problem"),
    [
        (_pages(torch.int8), Int8Scales(torch.zeros(5, 8, 3), torch.zeros(5, 8, 3)), r"expected float32 \[5, 3, 8\]"),
        (_pages(torch.uint8), _int8_scales(), "belong to int8"),
        (_pages(torch.int8), Fp8Scales(1.0, 1.0), "e4m3 codes in uint8"),
        (_pages(torch.uint8), Fp8Scales(0.0, 1.0), "must be positive"),
        (_pages(torch.int8), Int8Scales(*[torch.zeros(5, 8, 3).transpose(1, 2)] * 2), "contiguous"),
    ],
)
def test_scales_that_do_not_fit_their_pages_are_refused(pages: torch.Tensor, scales: CacheScales, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        scales.check(pages)
