"""Whether the scheduler's books agree with each other: what it may ask itself when idle."""

from collections import Counter

from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.sequence import SequenceStatus


def broken_invariants(lifecycle: Lifecycle) -> tuple[str, ...]:
    """Return what is wrong, in words; nothing is repaired."""
    return (
        *lifecycle.pool.check(),
        *lifecycle.cache.index.check(),
        *_wrong_references(lifecycle),
        *_wrong_tables(lifecycle),
        *_wrong_places(lifecycle),
    )


def _wrong_references(lifecycle: Lifecycle) -> list[str]:
    named = Counter(block for sequence in lifecycle.running for block in sequence.table)
    named.update(block for state in lifecycle.requests.values() for block in state.reserve)
    pool = lifecycle.pool
    return [
        f"block {block} has {pool.references(block)} references, but {named[block]} tables name it"
        for block in range(pool.capacity)
        if pool.references(block) != named[block]
    ]


def _wrong_tables(lifecycle: Lifecycle) -> list[str]:
    size = lifecycle.settings.block_size
    return [
        f"{sequence.key} has {len(sequence.table)} blocks for {sequence.computed} computed tokens"
        for sequence in lifecycle.running
        if sequence.epoch is None and len(sequence.table) != -(-sequence.computed // size)
    ]


def _wrong_places(lifecycle: Lifecycle) -> list[str]:
    wrong = []
    ranks = [sequence.rank for sequence in lifecycle.running]
    if ranks != sorted(set(ranks)):
        wrong.append("the running sequences are out of order")
    open_sequences = {s for state in lifecycle.requests.values() for s in state.sequences()}
    waiting = set(lifecycle.queue.sequences())
    if open_sequences != waiting | set(lifecycle.running) or waiting & set(lifecycle.running):
        wrong.append("an open sequence neither waits nor runs, or both")
    if any(sequence.table or sequence.computed for sequence in waiting):
        wrong.append("a waiting sequence has blocks")
    if any(sequence.status is SequenceStatus.ENDED for sequence in open_sequences):
        wrong.append("an ended sequence is open")
    return wrong
