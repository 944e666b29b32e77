"""kv_write for numba: heads are copied as they are, one token a work item. Importing this imports numba."""

# Kernels are a language of their own: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import numpy as np
from numba import carray
from numba.extending import register_jitable

from pagefleet_kernels.jit.memory import array_at, fetch_add_one

# Addresses and counts as the launcher fills them in. Strides count bytes; the pages' are of a page, a slot and a head.
ARGUMENTS = np.dtype(
    [
        *((name, np.int64) for name in ("key", "value", "key_pages", "value_pages", "slots", "counter")),
        *((name, np.int64) for name in ("tokens", "heads", "block_size", "num_slots")),
        *((f"{name}_bytes", np.int64) for name in ("key", "value")),
        *((f"{name}_strides", np.int64, 2) for name in ("key", "value")),
        *((f"{name}_page_strides", np.int64, 3) for name in ("key", "value")),
    ],
    align=True,
)


def find_bad_slot(arguments):
    """Return the first token whose slot isn't in the pages, or -1."""
    a = carray(arguments, 1)[0]
    slots = array_at(a.slots, a.tokens, np.int64)
    for token in range(a.tokens):
        if slots[token] < 0 or slots[token] >= a.num_slots:
            return token
    return -1


def write(arguments):
    a = carray(arguments, 1)[0]
    while True:
        token = fetch_add_one(a.counter)
        if token >= a.tokens:
            return
        slot = array_at(a.slots, a.tokens, np.int64)[token]
        page, place = slot // a.block_size, slot % a.block_size
        for head in range(a.heads):
            key_from, value_from = a.key_strides, a.value_strides
            key_to, value_to = a.key_page_strides, a.value_page_strides
            _copy(
                a.key + token * key_from[0] + head * key_from[1],
                a.key_pages + page * key_to[0] + place * key_to[1] + head * key_to[2],
                a.key_bytes,
            )
            _copy(
                a.value + token * value_from[0] + head * value_from[1],
                a.value_pages + page * value_to[0] + place * value_to[1] + head * value_to[2],
                a.value_bytes,
            )


@register_jitable
def _copy(source, to, num_bytes):
    old, new = array_at(source, num_bytes, np.uint8), array_at(to, num_bytes, np.uint8)
    for i in range(num_bytes):
        new[i] = old[i]
