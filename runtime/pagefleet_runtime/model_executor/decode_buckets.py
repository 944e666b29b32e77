"""Which sizes decode steps are padded to, and with what. Pure."""

from bisect import bisect_left
from collections.abc import Sequence

from pagefleet_runtime.plan import Row

PADDED_SLOT = -1


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Return the powers of two below `max_rows`, and that: a step's padding is less than what it holds."""
    return (*(2**exponent for exponent in range((max_rows - 1).bit_length())), max_rows)


def bucket_for(rows: Sequence[Row], buckets: Sequence[int]) -> int | None:
    """Return the smallest bucket that holds the rows, or None for other steps than such of one token a row."""
    if any(len(row.token_ids) != 1 for row in rows):
        return None
    place = bisect_left(buckets, len(rows))
    return buckets[place] if place < len(buckets) else None


def padded_numbers(rows: Sequence[Row], slots: Sequence[int], bucket: int) -> list[list[int]]:
    """Return token ids, positions and slots of `bucket` tokens. Padding is a token 0 at position 0, written nowhere."""
    padding = bucket - len(rows)
    return [
        [row.token_ids[0] for row in rows] + [0] * padding,
        [row.start_position for row in rows] + [0] * padding,
        [*slots, *[PADDED_SLOT] * padding],
    ]
