"""Sizes that decode steps are padded to, and what pads them."""

import pytest

from pagefleet_runtime.model_executor.decode_buckets import bucket_for, decode_buckets, padded_numbers
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey


def rows(*lengths: int) -> list[Row]:
    return [
        Row(SequenceKey(str(index), 0), tuple(range(7, 7 + length)), 20 + index, tuple(range(9)))
        for index, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("most", "buckets"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))],
)
def test_buckets_are_powers_of_two_and_the_most_rows(most: int, buckets: tuple[int, ...]) -> None:
    assert decode_buckets(most) == buckets


@pytest.mark.parametrize(
    ("num_rows", "bucket"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (17, 20), (20, 20), (21, None)]
)
def test_a_step_takes_the_smallest_bucket_that_holds_it(num_rows: int, bucket: int | None) -> None:
    assert bucket_for(rows(*[1] * num_rows), decode_buckets(20)) == bucket


def test_padding_is_less_than_what_a_step_holds() -> None:
    buckets = decode_buckets(200)
    for num_rows in range(1, 201):
        bucket = bucket_for(rows(*[1] * num_rows), buckets)
        assert bucket is not None and num_rows <= bucket < 2 * num_rows


def test_a_step_with_a_chunk_of_prefill_has_no_bucket() -> None:
    assert bucket_for(rows(1, 2, 1), decode_buckets(8)) is None


def test_padding_is_written_nowhere() -> None:
    assert padded_numbers(rows(1, 1), [33, 18], 4) == [[7, 7, 0, 0], [20, 21, 0, 0], [33, 18, -1, -1]]
