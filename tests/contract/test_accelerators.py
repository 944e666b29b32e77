"""Accelerators by name, alone and several of them."""

import pytest

from pagefleet_contract.accelerators import ACCELERATORS, find_accelerator


def test_several_of_a_kind_have_the_sum_of_what_one_has() -> None:
    one, four = find_accelerator("h100"), find_accelerator("4xH100")
    assert one is not None and four is not None and (one.count, four.count) == (1, 4)
    assert four.memory_bytes == 4 * one.memory_bytes
    assert four.bytes_per_second == 4 * one.bytes_per_second
    assert four.operations_per_second == 4 * one.operations_per_second


@pytest.mark.parametrize("text", ["", "h1000", "0xh100", "x4h100", "4x", "4 h100", "4xh100x2"])
def test_other_names_are_unknown(text: str) -> None:
    assert find_accelerator(text) is None


def test_every_name_is_found_as_it_is_written() -> None:
    assert [find_accelerator(one.name) for one in ACCELERATORS] == list(ACCELERATORS)
    assert len({one.name for one in ACCELERATORS}) == len(ACCELERATORS)
