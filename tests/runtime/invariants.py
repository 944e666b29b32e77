"""The invariants of memory, order and figures, written from the outside: from tables, pages and plans.

The numbers are those of the design's list of invariants. Nothing here asks the scheduler whether it is well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pagefleet_runtime.block_pool import BlockState
from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.plan import Row, StepPlan
from pagefleet_runtime.prefix_index import Node
from pagefleet_runtime.sequence import Sequence, SequenceStatus
from tests.runtime.toy_executor import Slot


@dataclass(frozen=True)
class Look:
    """What the invariants may look at."""

    lifecycle: Lifecycle
    pages: list[list[Slot]]
    outstanding: tuple[StepPlan, ...]  # planned, and not committed

    @property
    def block_size(self) -> int:
        return self.lifecycle.settings.block_size

    def open_sequences(self) -> tuple[Sequence, ...]:
        return tuple(s for state in self.lifecycle.requests.values() for s in state.sequences())


def check_memory(look: Look) -> None:
    """1, 2, 3, 5, 6, 10, 11: at any time between two calls."""
    pool, lifecycle = look.lifecycle.pool, look.lifecycle
    sequences = look.open_sequences()
    named = Counter(block for s in sequences for block in s.table)
    named.update(block for state in lifecycle.requests.values() for block in state.reserve)
    pinned = Counter(copy.source for plan in look.outstanding for copy in plan.copies)
    by_block = dict(_indexed(lifecycle))
    for block in range(pool.capacity):
        assert pool.references(block) == named[block], f"2: block {block} is named by {named[block]} tables"
        assert pool.pins(block) == pinned[block], f"2: block {block} is the source of {pinned[block]} copies"
        expected = BlockState.CACHED if block in by_block else BlockState.FREE
        if named[block] or pinned[block]:
            expected = BlockState.LIVE
        assert pool.state(block) is expected, f"1: block {block} is {pool.state(block)}, not {expected}"
    states = Counter(pool.state(block) for block in range(pool.capacity))
    assert sum(states.values()) == pool.capacity, "1: blocks were lost"
    assert pool.counts().cached == states[BlockState.CACHED], "1: cached blocks are counted wrong"
    assert pool.counts().live == states[BlockState.LIVE], "1: live blocks are counted wrong"
    _check_lists(look, by_block)
    _check_index(look, by_block)
    _check_tables(look, sequences)


def _check_lists(look: Look, by_block: dict[int, Node]) -> None:
    pool = look.lifecycle.pool
    free = list(pool._free)
    assert len(free) == len(set(free)), "3: a block is free twice"
    assert all(pool.state(block) is BlockState.FREE for block in free), "3: a held block is in the free list"
    assert all(block in by_block for block in pool._idle), "3: a block that can't be found is kept as cached"
    in_flight = {block for plan in look.outstanding for block in touched_blocks(plan)}
    assert not in_flight & set(free), "8: a step that is still out touches a block that can be handed out"
    assert not in_flight & set(pool._idle), "8: a step that is still out touches a block that can be evicted"


def _indexed(lifecycle: Lifecycle) -> Iterator[tuple[int, Node]]:
    """Every (block, node) that can be found from a root."""
    stack = list(lifecycle.cache.index._roots.values())
    while stack:
        node = stack.pop()
        if node.block is not None:
            yield node.block, node
        stack.extend(child for siblings in node.children.values() for child in siblings)


def _check_index(look: Look, by_block: dict[int, Node]) -> None:
    index = look.lifecycle.cache.index
    assert by_block == index._by_block, "5: the tree and the table of blocks differ"
    assert len(list(_indexed(look.lifecycle))) == len(by_block), "5: a block is in the index twice"
    for block, node in by_block.items():
        parent = node.parent
        assert parent is not None, "5: a root has a block"
        start = parent.depth * look.block_size
        content = [(token, start + offset) for offset, token in enumerate(node.tokens)]
        assert look.pages[block][: len(content)] == content, f"5: block {block} doesn't hold what the index says"
        if len(node.tokens) == look.block_size:
            assert node.digest == index.child_digest(parent.digest, node.tokens), "5: a node has another's digest"
            assert node.depth == parent.depth + 1, "5: a node has a wrong depth"


def _check_tables(look: Look, sequences: Iterable[Sequence]) -> None:
    mode = look.lifecycle.settings.prefix_sharing_mode
    holders: dict[int, Sequence] = {}
    for sequence in sequences:
        if sequence.status is SequenceStatus.WAITING:
            assert not sequence.table and sequence.computed == 0, "10: a waiting sequence holds blocks"
        if sequence.epoch is None:
            blocks = -(-sequence.computed // look.block_size)
            assert len(sequence.table) == blocks, f"6: {sequence.key} has {len(sequence.table)} blocks, not {blocks}"
        assert len(set(sequence.table)) == len(sequence.table), "6: a table names a block twice"
        for block in sequence.table:
            one, other = sequence.state.request, holders.setdefault(block, sequence).state.request
            assert mode != "Tenant" or one.tenant == other.tenant, "11: two tenants share a block"
            assert mode != "Disabled" or one is other, "11: a block is shared although sharing is off"


# --- a plan, before it runs


def written_slots(row: Row, block_size: int) -> list[tuple[int, int]]:
    positions = range(row.start_position, row.start_position + len(row.token_ids))
    return [(row.block_table[position // block_size], position % block_size) for position in positions]


def touched_blocks(plan: StepPlan) -> set[int]:
    tables = {block for row in plan.rows for block in row.block_table}
    return tables | {block for copy in plan.copies for block in (copy.source, copy.target)}


def used_slots(lifecycle: Lifecycle) -> int:
    return sum(s.num_choices for s in lifecycle.running)


def check_plan(
    look: Look, plan: StepPlan, max_tokens: int | None, earlier: tuple[StepPlan, ...], slots_before: int
) -> None:
    """4, 6, 7, 8, 12. `earlier` are the plans that were out when this one was made."""
    size, lifecycle = look.block_size, look.lifecycle
    owners = Counter(block for s in look.open_sequences() for block in s.table)
    findable = dict(_indexed(lifecycle))
    slots = [slot for row in plan.rows for slot in written_slots(row, size)]
    written = {block for block, _ in slots}
    assert len(slots) == len(set(slots)), "6: a slot is written twice in a step"
    for block in written:
        assert owners[block] == 1, f"4: block {block} is written and has {owners[block]} owners"
        assert block not in findable, f"4: block {block} is written and can be found"
    for row in plan.rows:
        end = row.start_position + len(row.token_ids)
        assert len(row.block_table) == -(-end // size), "6: the table doesn't end with the row"
        others = {b for other in plan.rows if other is not row for b, _ in written_slots(other, size)}
        assert not others & set(row.block_table), "7: a row reads what another writes"
    targets = {copy.target for copy in plan.copies}
    assert len(targets) == len(plan.copies), "7: two copies have one target"
    assert not targets & {copy.source for copy in plan.copies}, "7: a copy's source is another's target"
    assert targets <= written, "4: a page was copied that nobody writes"
    out = {block for other in earlier for block in touched_blocks(other)}
    assert not written & out, "8: a block is written while a step that is still out touches it"
    if max_tokens is not None:
        assert plan.num_tokens <= max_tokens, "12: the step has too many tokens"
    # The limit may have been lowered while more were running.
    most_slots = max(lifecycle.settings.max_sequences, slots_before)
    assert used_slots(lifecycle) <= most_slots, "12: too many sequences run"
    _check_chunk_edges(look, plan)


def _check_chunk_edges(look: Look, plan: StepPlan) -> None:
    """12: a chunk that doesn't finish the known tokens ends at a block's edge, but for the step's first."""
    by_key = {s.key: s for s in look.open_sequences()}
    first = True
    for row in plan.rows:
        sequence = by_key[row.key]
        end = row.start_position + len(row.token_ids)
        if sequence.total - row.start_position == 1:
            continue
        split = sequence.state.request.params.prompt_logprobs is not None
        assert first or split or end == sequence.total or end % look.block_size == 0, "12: a chunk ends inside a block"
        first = False
