"""numba's writes to the cache, and where its code is kept."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch

from pagefleet_kernels.jit import NumbaLibrary, NumbaUnavailable, load_numba
from pagefleet_kernels.kv_write.jit import NumbaWriter
from pagefleet_kernels.kv_write.reference import kv_write_reference


def nan_pages(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two layers a page; the second's keys of size 40 and values of size 23."""
    pages = torch.full((6, 2, 4 * 3 * 63), float("nan"), dtype=dtype)
    last = pages[:, 1]
    return last[:, : 4 * 3 * 40].view(6, 4, 3, 40), last[:, 4 * 3 * 40 :].view(6, 4, 3, 23)


@pytest.mark.parametrize("num_tokens", [9, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_land_in_their_slots_converted(
    numba_library: NumbaLibrary, dtype: torch.dtype, stored: torch.dtype, num_tokens: int
) -> None:
    keys, values = (pages.repeat(10, 1, 1, 1) for pages in nan_pages(stored))
    expected_keys, expected_values = keys.clone(), values.clone()
    fused = torch.randn(num_tokens, 3, 40 + 23).to(dtype)
    key, value = fused[..., :40], fused[..., 40:]
    slots = torch.randperm(len(keys) * 4)[:num_tokens]

    NumbaWriter(numba_library, keys, values).write(key, value, slots)

    kv_write_reference(key, value, expected_keys, expected_values, slots)
    for ours, meant in ((keys, expected_keys), (values, expected_values)):
        assert torch.equal(ours.isnan(), meant.isnan()) and torch.equal(ours.nan_to_num(), meant.nan_to_num())


def test_other_layers_of_the_page_are_left_alone(numba_library: NumbaLibrary) -> None:
    pages = torch.full((6, 3, 4, 3, 8), float("nan"))

    NumbaWriter(numba_library, pages[:, 0], pages[:, 2]).write(
        torch.zeros(1, 3, 8), torch.zeros(1, 3, 8), torch.tensor([9])
    )

    assert pages[:, 1].isnan().all() and int((~pages.isnan()).sum()) == 2 * 3 * 8


@pytest.mark.parametrize("slot", [-1, 24])
def test_a_slot_that_is_not_there_is_named_and_nothing_is_written(numba_library: NumbaLibrary, slot: int) -> None:
    keys, values = nan_pages(torch.float32)

    with pytest.raises(ValueError, match=f"slot {slot} of token 1 isn't there; the pages have slots 0 to 23"):
        NumbaWriter(numba_library, keys, values).write(
            torch.zeros(2, 3, 40), torch.zeros(2, 3, 23), torch.tensor([3, slot])
        )

    assert keys.isnan().all()


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")

    answer = load_numba(occupied)

    assert isinstance(answer, NumbaUnavailable) and f"can't be kept in {occupied}" in answer.reason


def test_numba_keeps_its_own_cache_folder_for_others(numba_library: NumbaLibrary) -> None:
    assert numba.config.CACHE_DIR == os.environ.get("NUMBA_CACHE_DIR", "")


def test_nothing_imports_numba_or_llvm_before_it_is_chosen() -> None:
    look = (
        "import sys, pagefleet_kernels.choice, pagefleet_kernels.jit.pages;"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('numba', 'llvmlite')))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
