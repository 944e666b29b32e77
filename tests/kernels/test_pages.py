"""Writing to slots and copying pages, to the bit."""

import pytest
import torch

from pagefleet_kernels.kv_write import kv_write
from pagefleet_kernels.page_copy import page_copy
from pagefleet_kernels.pages import PLAIN_PAGES


def test_each_token_lands_in_its_slot_and_nothing_else_changes() -> None:
    pages = torch.full((5, 2, 4, 3, 8), float("nan"))  # a page holds two layers
    keys, values = pages[:, 0], pages[:, 1, :, :, :5]
    key, value = torch.randn(3, 3, 8), torch.randn(3, 3, 5)

    kv_write(key, value, keys, values, torch.tensor([17, 2, 7]))

    assert torch.equal(keys[4, 1], key[0])
    assert torch.equal(keys[0, 2], key[1])
    assert torch.equal(values[1, 3], value[2])
    assert int(pages.isnan().sum()) == pages.numel() - key.numel() - value.numel()


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_keys_are_rounded_once_to_the_pages_dtype(stored: torch.dtype) -> None:
    pages = torch.zeros(2, 2, 1, 4, dtype=stored)
    key = torch.randn(1, 1, 4)

    kv_write(key, key, pages, pages.clone(), torch.tensor([3]))

    assert torch.equal(pages[1, 1], key[0].to(stored))


@pytest.mark.parametrize(
    ("key", "slots", "message"),
    [
        (torch.zeros(2, 3, 8), torch.tensor([1, 2]), "same heads and size"),
        (torch.zeros(2, 1, 8), torch.tensor([1]), "2 tokens but there are 1 slots"),
        (torch.zeros(1, 1, 8), torch.tensor([1], dtype=torch.int32), "torch.long"),
    ],
)
def test_writes_that_do_not_fit_are_named(key: torch.Tensor, slots: torch.Tensor, message: str) -> None:
    pages = torch.zeros(4, 2, 1, 8)

    with pytest.raises(ValueError, match=message):
        kv_write(key, key, pages, pages, slots)


def test_copies_are_whole_pages_in_order() -> None:
    buffer = torch.arange(4 * 6, dtype=torch.uint8).view(4, 6)
    before = buffer.clone()

    page_copy(buffer, [(0, 1), (1, 2)], kernels=PLAIN_PAGES)

    assert torch.equal(buffer, before[[0, 0, 0, 3]])


def test_a_page_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="copy of page 4 to page 0: the cache has pages 0 to 3"):
        page_copy(torch.zeros(4, 8, dtype=torch.uint8), [(4, 0)], kernels=PLAIN_PAGES)
