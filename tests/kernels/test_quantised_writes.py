"""Keys and values written as codes in eight bits, plain and in C++, rotated or not, against their meaning."""

import pytest
import torch

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.kv_write import kv_write
from pagefleet_kernels.kv_write.cpu import kv_write_cpu
from pagefleet_kernels.quantised_kv import CacheScales, Fp8Scales, Int8Scales, write_quantised_reference
from pagefleet_kernels.rotary_kv_write import rotary_kv_write
from tests.kernels.tolerances import CODES, ROUNDING

TYPES = (torch.float32, torch.bfloat16, torch.float16)
STORED = (torch.int8, torch.uint8)
BLOCKS, BLOCK_SIZE = 6, 4
SLOTS = torch.tensor([23, 0, 5, 4, 9, 8, 22, 13, 2])
UNWRITTEN = 101


class Store:
    """Pages of codes with their scales; what nobody writes keeps its bytes."""

    def __init__(self, stored: torch.dtype, heads: int, size: int, value_size: int) -> None:
        shape = (BLOCKS, BLOCK_SIZE, heads)
        self.keys = torch.full((*shape, size), UNWRITTEN, dtype=stored)
        self.values = torch.full((*shape, value_size), UNWRITTEN, dtype=stored)
        self.scales: CacheScales = Fp8Scales(0.011, 0.004)
        if stored == torch.int8:
            both = torch.full((BLOCKS, 2 * heads, BLOCK_SIZE), float(UNWRITTEN))
            self.scales = Int8Scales(both[:, :heads], both[:, heads:])

    def assert_equals(self, meant: "Store", tolerance: float) -> None:
        """Codes may differ by one where a number lies between two. Slots that nobody wrote are among them."""
        for ours, theirs in ((self.keys, meant.keys), (self.values, meant.values)):
            assert (ours.int() - theirs.int()).abs().max() <= CODES[ours.dtype]
            assert (ours == theirs).float().mean() > 0.98
        if isinstance(self.scales, Int8Scales) and isinstance(meant.scales, Int8Scales):
            for name in ("keys", "values"):
                torch.testing.assert_close(
                    getattr(self.scales, name), getattr(meant.scales, name), rtol=tolerance, atol=0, equal_nan=True
                )


def some_tokens(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    fused = torch.randn(len(SLOTS), 3, 40 + 24, generator=torch.Generator().manual_seed(5)).to(dtype)
    fused[1, 0] = 0  # a row without a scale
    return fused[..., :40], fused[..., 40:]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_tokens_land_in_their_slots_as_codes(library: CpuLibrary, dtype: torch.dtype, stored: torch.dtype) -> None:
    key, value = some_tokens(dtype)
    ours, plain, meant = (Store(stored, 3, 40, 24) for _ in range(3))

    kv_write_cpu(library, key, value, ours.keys, ours.values, SLOTS, ours.scales)
    kv_write(key, value, plain.keys, plain.values, SLOTS, scales=plain.scales)

    write_quantised_reference(key, value, meant.keys, meant.values, meant.scales, SLOTS)
    ours.assert_equals(meant, 1e-6)
    plain.assert_equals(meant, 0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_rotated_keys_become_codes_of_what_was_rotated(
    library: CpuLibrary, dtype: torch.dtype, stored: torch.dtype
) -> None:
    stores, queries = [], []
    for chosen in (library, None):
        key, value = some_tokens(dtype)
        query, angles = torch.ones(len(SLOTS), 6, 40, dtype=dtype), torch.arange(9 * 20.0).view(9, 20)
        store = Store(stored, 3, 40, 24)
        rotary_kv_write(
            query, key, value, angles.cos(), angles.sin(), store.keys, store.values, SLOTS,
            query_norm=torch.full((40,), 2.0), key_norm=torch.full((40,), 3.0), epsilon=1e-5,
            scales=store.scales, library=chosen,
        )  # fmt: skip
        stores.append(store)
        queries.append(query)

    stores[0].assert_equals(stores[1], 1e-5)
    torch.testing.assert_close(*queries, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_every_half_becomes_the_e4m3_code_that_pytorch_gives_it(library: CpuLibrary) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    rows = every[every.isfinite()].view(124, 2, 256)
    stored = [torch.zeros(8, 16, 2, 256, dtype=torch.uint8) for _ in range(4)]
    slots, scales = torch.arange(124), Fp8Scales(1.0, 1.0)

    kv_write_cpu(library, rows, rows, stored[0], stored[1], slots, scales)

    write_quantised_reference(rows, rows, stored[2], stored[3], scales, slots)
    assert torch.equal(stored[0], stored[2]) and torch.equal(stored[1], stored[3])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_no_number_comes_back_as_none(library: CpuLibrary, broken: float) -> None:
    key, value = some_tokens(torch.float32)
    value[2, 1, 7] = broken
    for chosen in (library, None):
        int8 = Store(torch.int8, 3, 40, 24)
        fp8 = Store(torch.uint8, 3, 40, 24)
        for store in (int8, fp8):
            if chosen is None:
                kv_write(key, value, store.keys, store.values, SLOTS, scales=store.scales)
            else:
                kv_write_cpu(chosen, key, value, store.keys, store.values, SLOTS, store.scales)
        assert isinstance(int8.scales, Int8Scales)
        written = int8.scales.values[SLOTS // BLOCK_SIZE, :, SLOTS % BLOCK_SIZE]
        assert (~written.isfinite()).nonzero().tolist() == [[2, 1]]
        code = int(fp8.values[SLOTS[2] // BLOCK_SIZE, SLOTS[2] % BLOCK_SIZE, 1, 7])
        assert code == (0x7F if broken != broken else 0x7E)


def test_scales_that_do_not_belong_to_the_pages_are_refused(library: CpuLibrary) -> None:
    key, value = some_tokens(torch.float32)
    int8, fp8 = Store(torch.int8, 3, 40, 24), Store(torch.uint8, 3, 40, 24)

    for store, scales, message in (
        (int8, fp8.scales, "e4m3"),
        (fp8, int8.scales, "int8"),
        (int8, None, "mean nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            kv_write_cpu(library, key, value, store.keys, store.values, SLOTS, scales)
