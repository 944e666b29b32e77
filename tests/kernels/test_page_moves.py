"""page_gather and page_scatter on a CPU: what moves, what stays, what is refused."""

from collections.abc import Sequence

import pytest
import torch

from pagefleet_kernels.page_gather_scatter import page_gather, page_scatter


def _random(rows: int, width: int = 48) -> torch.Tensor:
    return torch.randint(0, 256, (rows, width), dtype=torch.uint8)


def test_gathered_pages_come_back_to_the_bit_and_others_stay() -> None:
    buffer, staging = _random(6), torch.full((4, 48), 255, dtype=torch.uint8)
    page_gather(buffer, [5, 0, 3], staging)
    assert torch.equal(staging[:3], buffer[[5, 0, 3]])
    assert (staging[3] == 255).all()
    restored = torch.zeros_like(buffer)
    page_scatter(staging, [5, 0, 3], restored)
    assert torch.equal(restored[[5, 0, 3]], buffer[[5, 0, 3]])
    assert not restored[[1, 2, 4]].any()


@pytest.mark.parametrize(
    ("pages", "staging", "problem"),
    [
        ([6], _random(4), r"pages \[6\] aren't there"),
        ([-1], _random(4), r"pages \[-1\] aren't there"),
        ([0, 1], _random(1), "2 pages don't fit into 1 rows"),
        ([0], _random(4, 32), "pages of the same bytes"),
    ],
)
def test_moves_that_cannot_be_made_are_refused(pages: Sequence[int], staging: torch.Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        page_gather(_random(6), pages, staging)
    with pytest.raises(ValueError, match=problem):
        page_scatter(staging, pages, _random(6))


def test_a_page_cannot_be_scattered_to_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        page_scatter(_random(2), [3, 3], _random(6))
