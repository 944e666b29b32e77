"""The C++ writes, rotations and moves of pages against their meaning."""

import pytest
import torch

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.cpu.cache import PageWriter
from pagefleet_kernels.kv_write.cpu import kv_write_cpu
from pagefleet_kernels.kv_write.reference import kv_write_reference
from pagefleet_kernels.page_copy.cpu import page_copy_cpu
from pagefleet_kernels.page_gather_scatter.cpu import page_gather_cpu, page_scatter_cpu
from pagefleet_kernels.rotary_kv_write import rotary_kv_write
from tests.kernels.tolerances import ROUNDING

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def nan_pages(dtype: torch.dtype, heads: int, size: int, value_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages of which another layer has the front part."""
    buffer = torch.full((6, 4 * heads * (7 + size + value_size)), float("nan"), dtype=dtype)
    keys = buffer[:, 4 * heads * 7 :][:, : 4 * heads * size].view(6, 4, heads, size)
    values = buffer[:, 4 * heads * (7 + size) :].view(6, 4, heads, value_size)
    return keys, values


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("stored", TYPES)
def test_writes_land_in_their_slots_converted(library: CpuLibrary, dtype: torch.dtype, stored: torch.dtype) -> None:
    fused = torch.randn(9, 3, 40 + 23).to(dtype)
    key, value = fused[..., :40], fused[..., 40:]
    slots = torch.tensor([23, 0, 5, 4, 9, 8, 22, 13, 2])
    keys, values = nan_pages(stored, 3, 40, 23)
    expected_keys, expected_values = nan_pages(stored, 3, 40, 23)

    kv_write_cpu(library, key, value, keys, values, slots)

    kv_write_reference(key, value, expected_keys, expected_values, slots)
    assert same(keys, expected_keys) and same(values, expected_values)


@pytest.mark.parametrize("slot", [-1, 24])
def test_a_slot_that_is_not_there_is_named_and_nothing_is_written(library: CpuLibrary, slot: int) -> None:
    keys, values = nan_pages(torch.float32, 2, 8, 8)

    with pytest.raises(ValueError, match=f"slot {slot} of token 1 isn't there; the pages have slots 0 to 23"):
        kv_write_cpu(library, torch.zeros(2, 2, 8), torch.zeros(2, 2, 8), keys, values, torch.tensor([3, slot]))

    assert keys.isnan().all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("size", "rotated", "normed"), [(64, 64, False), (80, 20, False), (34, 34, True), (128, 128, True)]
)
def test_rotation_with_the_write_equals_its_meaning(
    library: CpuLibrary, dtype: torch.dtype, size: int, rotated: int, normed: bool
) -> None:
    fused = torch.randn(300, (9 + 3 + 3) * size).to(dtype)
    angles = torch.randn(300, rotated)
    slots = torch.randperm(6 * 64)[:300]
    norms = {"query_norm": torch.randn(size), "key_norm": torch.randn(size), "epsilon": 1e-5} if normed else {}
    results = []
    for chosen in (library, None):
        heads = fused.clone().view(300, 15, size)
        query, key, value = heads[:, :9], heads[:, 9:12], heads[:, 12:]
        pages = torch.full((2, 6, 64, 3, size), float("nan"), dtype=dtype)
        rotary_kv_write(
            query,
            key,
            value,
            angles.cos(),
            angles.sin(),
            pages[0],
            pages[1],
            slots,
            library=chosen,
            **norms,  # type: ignore[arg-type]
        )
        results.append((query, pages))

    for ours, meant in zip(*results, strict=True):
        assert torch.equal(ours.isnan(), meant.isnan())
        torch.testing.assert_close(ours, meant, equal_nan=True, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_rotations_that_do_not_fit_are_named(library: CpuLibrary) -> None:
    pages = torch.zeros(2, 4, 1, 8)
    x, angles, slots = torch.zeros(3, 1, 8), torch.zeros(3, 8), torch.tensor([0, 1, 2])

    with pytest.raises(ValueError, match=r"cosine has shape \[3, 7\]"):
        rotary_kv_write(x, x, x, angles[:, :7], angles[:, :7], pages, pages, slots, library=library)
    with pytest.raises(ValueError, match=r"query has shape \[2, 1, 8\]"):
        rotary_kv_write(x[:2], x, x, angles, angles, pages, pages, slots, library=library)
    with pytest.raises(ValueError, match="query norm"):
        rotary_kv_write(x, x, x, angles, angles, pages, pages, slots, query_norm=torch.ones(7), library=library)
    wide, wide_pages = torch.zeros(3, 1, 258), torch.zeros(2, 4, 1, 258)
    with pytest.raises(ValueError, match="keys have 258 numbers a head, of which 8 are rotated"):
        rotary_kv_write(wide, wide, wide, angles, angles, wide_pages, wide_pages, slots, library=library)


def test_a_writer_takes_as_many_slots_as_tokens_in_every_step(library: CpuLibrary) -> None:
    pages = torch.zeros(2, 2, 8, 1, 8)
    writer, x, slots = PageWriter(library, pages[0], pages[1]), torch.ones(6, 1, 8), torch.arange(6)

    writer.write(x, x, slots)

    with pytest.raises(ValueError, match=r"keys have shape \[6, 1, 8\]; expected \[2, 1, 8\]"):
        writer.write(x, x, slots[:2])


@pytest.mark.parametrize("page_bytes", [6, 4096, 300_001])
def test_copies_are_whole_pages_in_order(library: CpuLibrary, page_bytes: int) -> None:
    buffer = torch.randint(256, (5, page_bytes), dtype=torch.uint8)
    before = buffer.clone()

    page_copy_cpu(library, buffer, [(0, 1), (1, 2), (3, 0)])

    assert torch.equal(buffer, before[[3, 0, 0, 3, 4]])


@pytest.mark.parametrize("page_bytes", [7, 8192, 100_003])
def test_pages_travel_to_staging_and_back(library: CpuLibrary, page_bytes: int) -> None:
    buffer = torch.randint(256, (6, page_bytes), dtype=torch.uint8)
    staging = torch.zeros(4, page_bytes, dtype=torch.uint8)
    target = torch.zeros_like(buffer)

    page_gather_cpu(library, buffer, [5, 0, 3], staging)
    page_scatter_cpu(library, staging, [1, 2, 4], target)

    assert torch.equal(staging[:3], buffer[[5, 0, 3]]) and not staging[3].any()
    assert torch.equal(target[[1, 2, 4]], buffer[[5, 0, 3]]) and not target[[0, 3, 5]].any()
