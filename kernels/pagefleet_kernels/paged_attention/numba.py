"""Decode attention for numba: one work item is a part of one row's context with all its heads, block by block.

Each thread calls `attend_…` once and takes items from a counter until none is left; then `combine` joins the parts of
each row. Importing this imports numba; `jit/library.py` compiles it. The README has the arithmetic.
"""

# Kernels are a language of their own: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import numpy as np
from numba import carray
from numba.extending import register_jitable

from pagefleet_kernels.jit.memory import array_at, bits_of, fetch_add_one, number_of, prefetch, widened

# Scores of a tile stay in the second cache until they are weights.
TILE = 128
_LOG2_E = np.float32(1.4426950408889634)
_LOWEST = np.float32(-1e30)
# What may change for speed: the order of sums. NaN and infinities keep their meaning.
_FAST = {"reassoc", "contract", "nsz", "arcp"}

# Addresses and counts as the launcher fills them in. Strides count bytes.
ARGUMENTS = np.dtype(
    [
        *((name, np.int64) for name in ("query", "out", "keys", "values", "sinks", "items", "row_items", "tables")),
        *((name, np.int64) for name in ("parts", "scratch", "counters", "num_items", "num_rows", "scratch_bytes")),
        *((name, np.int64) for name in ("query_heads", "kv_heads", "key_size", "value_size", "block_size")),
        *((name, np.int64) for name in ("key_page_stride", "value_page_stride", "element_bytes", "part_bytes")),
        *((name, np.float32) for name in ("scale", "softcap")),
    ],
    align=True,
)


def attend_float32(arguments):
    _attend(carray(arguments, 1)[0], np.float32)


def attend_bfloat16(arguments):
    _attend(carray(arguments, 1)[0], np.uint16)


def combine(arguments):
    """Write each row's output from its parts: the softmax over all of them, and over the head's sink."""
    a = carray(arguments, 1)[0]
    while True:
        row = fetch_add_one(a.counters + 16)
        if row >= a.num_rows:
            return
        first, end = array_at(a.row_items + row * 8, 2, np.int64)
        for head in range(a.query_heads):
            _combine_head(a, row, head, first, end)


@register_jitable
def _attend(a, dtype):
    scratch = a.scratch + fetch_add_one(a.counters) * a.scratch_bytes
    while True:
        item = fetch_add_one(a.counters + 8)
        if item >= a.num_items:
            return
        _attend_part(a, item, scratch, dtype)


@register_jitable
def _attend_part(a, item, query, dtype):
    """Leave the part's weighted values, and each head's largest score and sum of weights, in its place of `parts`."""
    row, begin, end, table = array_at(a.items + item * 32, 4, np.int64)
    _scale_query(a, row, query)
    scores = query + a.query_heads * a.key_size * 4
    sums = a.parts + item * a.part_bytes
    best = sums + a.query_heads * a.value_size * 4
    total = best + a.query_heads * 4
    _fill(sums, a.query_heads * a.value_size, np.float32(0))
    _fill(best, a.query_heads, _LOWEST)
    _fill(total, a.query_heads, np.float32(0))
    for tile in range(begin, end, TILE):
        tile_end = min(tile + TILE, end)
        _score(a, table, tile, tile_end, end, query, scores, dtype)
        for head in range(a.query_heads):
            _weigh(a, head, tile_end - tile, scores, sums, best, total)
        _add_values(a, table, tile, tile_end, end, scores, sums, dtype)


@register_jitable
def _scale_query(a, row, to):
    """Scores come out times log2 e, or of a soft-cap as what is capped."""
    factor = a.scale / a.softcap if a.softcap > 0 else a.scale * _LOG2_E
    size = a.query_heads * a.key_size
    source, scaled = array_at(a.query + row * size * 4, size, np.float32), array_at(to, size, np.float32)
    for i in range(size):
        scaled[i] = source[i] * factor


@register_jitable
def _score(a, table, tile, tile_end, end, query, scores, dtype):
    """Write the scores [query heads, TILE] of positions `tile` up to `tile_end`; keys are read once a group."""
    tables = array_at(a.tables + table * 4, (end + a.block_size - 1) // a.block_size, np.int32)
    group = a.query_heads // a.kv_heads
    head_bytes = a.key_size * a.element_bytes
    slot_bytes = a.kv_heads * head_bytes
    position = tile
    while position < tile_end:
        block, offset = position // a.block_size, position % a.block_size
        count = min(a.block_size - offset, tile_end - position)
        keys = a.keys + tables[block] * a.key_page_stride + offset * slot_bytes
        coming = a.keys + tables[min(block + 1, len(tables) - 1)] * a.key_page_stride
        for kv_head in range(a.kv_heads):
            for slot in range(count):
                place = slot * slot_bytes + kv_head * head_bytes
                prefetch(coming + place, head_bytes)
                for head in range(kv_head * group, (kv_head + 1) * group):
                    score = _dot(query + head * a.key_size * 4, keys + place, a.key_size, dtype)
                    array_at(scores + (head * TILE + position - tile + slot) * 4, 1, np.float32)[0] = score
        position += count


@register_jitable
def _weigh(a, head, count, all_scores, sums, best, total):
    """Turn a head's scores into weights below the largest score so far, and what was summed before to that."""
    scores = all_scores + head * TILE * 4
    if a.softcap > 0:
        _cap(scores, count, a.softcap)
    held = array_at(best + head * 4, 1, np.float32)
    weight = array_at(total + head * 4, 1, np.float32)
    largest = _largest(scores, held[0], count)
    change = _exp2(held[0] - largest)
    _exponentials(scores, largest, count)
    held[0] = largest
    weight[0] = weight[0] * change + _sum(scores, count)
    _multiply(sums + head * a.value_size * 4, change, a.value_size)


@register_jitable
def _add_values(a, table, tile, tile_end, end, scores, sums, dtype):
    tables = array_at(a.tables + table * 4, (end + a.block_size - 1) // a.block_size, np.int32)
    group = a.query_heads // a.kv_heads
    head_bytes = a.value_size * a.element_bytes
    slot_bytes = a.kv_heads * head_bytes
    position = tile
    while position < tile_end:
        block, offset = position // a.block_size, position % a.block_size
        count = min(a.block_size - offset, tile_end - position)
        values = a.values + tables[block] * a.value_page_stride + offset * slot_bytes
        coming = a.values + tables[min(block + 1, len(tables) - 1)] * a.value_page_stride
        for kv_head in range(a.kv_heads):
            place = kv_head * head_bytes
            for slot in range(count):
                prefetch(coming + place + slot * slot_bytes, head_bytes)
            for head in range(kv_head * group, (kv_head + 1) * group):
                weights = scores + (head * TILE + position - tile) * 4
                to = sums + head * a.value_size * 4
                _add_weighted(to, values + place, slot_bytes, weights, count, a.value_size, dtype)
        position += count


@register_jitable
def _add_weighted(to, values, slot_bytes, weights, count, size, dtype):
    """Add weighted values, four slots at a time, so that the sums are read and written for every fourth only."""
    w = array_at(weights, count, np.float32)
    slot = 0
    while slot + 4 <= count:
        _add_four(
            to, values + slot * slot_bytes, slot_bytes, w[slot], w[slot + 1], w[slot + 2], w[slot + 3], size, dtype
        )
        slot += 4
    while slot < count:
        _add_one(to, values + slot * slot_bytes, w[slot], size, dtype)
        slot += 1


@register_jitable
def _combine_head(a, row, head, first, end):
    best = _LOWEST
    sink = _LOWEST
    if a.sinks != 0:
        sink = array_at(a.sinks, a.query_heads, np.float32)[head] * _LOG2_E
        best = sink
    heads, size = a.query_heads, a.value_size
    for item in range(first, end):
        best = max(best, array_at(a.parts + item * a.part_bytes + heads * size * 4, heads, np.float32)[head])
    out = a.out + (row * heads + head) * size * 4
    _fill(out, size, np.float32(0))
    total = _exp2(sink - best) if a.sinks != 0 else np.float32(0)
    for item in range(first, end):
        part = a.parts + item * a.part_bytes
        figures = array_at(part + heads * size * 4, 2 * heads, np.float32)
        change = _exp2(figures[head] - best)
        total += change * figures[heads + head]
        _add_one(out, part + head * size * 4, change, size, np.float32)
    _multiply(out, np.float32(1) / total, size)


# --- rows of numbers


@register_jitable(fastmath=_FAST)
def _dot(left, right, size, dtype):
    x, y = array_at(left, size, np.float32), array_at(right, size, dtype)
    total = np.float32(0)
    for i in range(size):
        total += x[i] * widened(y[i])
    return total


@register_jitable(fastmath=_FAST)
def _add_one(to, values, weight, size, dtype):
    sums, v = array_at(to, size, np.float32), array_at(values, size, dtype)
    for i in range(size):
        sums[i] += weight * widened(v[i])


@register_jitable(fastmath=_FAST)
def _add_four(to, values, slot_bytes, w0, w1, w2, w3, size, dtype):
    sums = array_at(to, size, np.float32)
    v0, v1 = array_at(values, size, dtype), array_at(values + slot_bytes, size, dtype)
    v2, v3 = array_at(values + 2 * slot_bytes, size, dtype), array_at(values + 3 * slot_bytes, size, dtype)
    for i in range(size):
        sums[i] += w0 * widened(v0[i]) + w1 * widened(v1[i]) + w2 * widened(v2[i]) + w3 * widened(v3[i])


@register_jitable(fastmath=_FAST)
def _sum(address, size):
    total = np.float32(0)
    for number in array_at(address, size, np.float32):
        total += number
    return total


@register_jitable(fastmath=_FAST)
def _largest(address, floor, size):
    largest = floor
    for number in array_at(address, size, np.float32):
        largest = max(largest, number)
    return largest


@register_jitable
def _multiply(address, factor, size):
    numbers = array_at(address, size, np.float32)
    for i in range(size):
        numbers[i] *= factor


@register_jitable
def _fill(address, size, number):
    numbers = array_at(address, size, np.float32)
    for i in range(size):
        numbers[i] = number


@register_jitable(fastmath=False)
def _exponentials(address, largest, size):
    numbers = array_at(address, size, np.float32)
    for i in range(size):
        numbers[i] = _exp2(numbers[i] - largest)


@register_jitable(fastmath=False)
def _cap(address, size, cap):
    """softcap · tanh x, times log2 e, by tanh x = 1 - 2 / (e^2x + 1)."""
    numbers = array_at(address, size, np.float32)
    for i in range(size):
        bounded = min(max(np.float32(2) * _LOG2_E * numbers[i], np.float32(-126)), np.float32(126))
        numbers[i] = cap * _LOG2_E * (np.float32(1) - np.float32(2) / (_exp2(bounded) + np.float32(1)))


@register_jitable(fastmath=False)
def _exp2(x):
    """2^x for x up to 126, to about the last bit; NaN stays NaN. libm's is not a vector's.

    Adding 1.5 · 2**23 leaves round(x) in the low bits; the rest, at most a half, goes through a polynomial.
    """
    at_least = np.float32(-126) if x < np.float32(-126) else x
    shifted = at_least + np.float32(12582912.0)
    rest = at_least - (shifted - np.float32(12582912.0))
    power = np.float32(1.54353e-4)
    power = power * rest + np.float32(1.33988e-3)
    power = power * rest + np.float32(9.6181291e-3)
    power = power * rest + np.float32(5.5504109e-2)
    power = power * rest + np.float32(2.4022651e-1)
    power = power * rest + np.float32(6.9314718e-1)
    power = power * rest + np.float32(1)
    return number_of(np.int32(bits_of(power) + (bits_of(shifted) << np.int32(23))))
