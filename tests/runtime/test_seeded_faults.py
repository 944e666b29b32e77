"""Faults put into the core on purpose: each must be seen by the state machine, or the machine proves nothing."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from pagefleet_runtime.block_cache import BlockCache
from pagefleet_runtime.block_pool import BlockPool
from pagefleet_runtime.commit import StepCommit
from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.plan import PageCopy, StepPlan, StepResult
from pagefleet_runtime.planning import StepPlanner, _Writable
from pagefleet_runtime.prefix_index import Node, PrefixIndex
from pagefleet_runtime.sequence import Sequence
from tests.runtime.machine import SchedulerMachine, machine_settings
from tests.runtime.toy_executor import ToyExecutor

Patch = Callable[[type, str, Any], None]
Fault = Callable[[Patch], None]


def no_fence(patch: Patch) -> None:
    patch(BlockPool, "is_fenced", lambda self, block: False)


def double_free(patch: Patch) -> None:
    release = BlockPool.release

    def faulty(self: BlockPool, block: int, **how: Any) -> None:
        if self.references(block) > 1:
            self._references[block] -= 1
        release(self, block, **how)

    patch(BlockPool, "release", faulty)


def leak_on_abort_during_a_step(patch: Patch) -> None:
    release = BlockCache.release

    def faulty(self: BlockCache, sequence: Sequence, *, keep_tail: bool) -> None:
        if sequence.epoch is not None and sequence.table:
            sequence.table.pop()
        release(self, sequence, keep_tail=keep_tail)

    patch(BlockCache, "release", faulty)


def findable_one_token_before_the_block_is_full(patch: Patch) -> None:
    confirm = BlockCache.confirm

    def faulty(self: BlockCache, sequence: Sequence, computed: int) -> None:
        confirm(self, sequence, computed)
        chain, size = sequence.chain, self.block_size
        if chain is not None and computed % size and chain.depth < (computed + 1) // size < len(sequence.table) + 1:
            self._extend(sequence, chain)

    patch(BlockCache, "confirm", faulty)


def findable_before_it_is_written(patch: Patch) -> None:
    draft = StepPlanner._draft

    def faulty(self: StepPlanner, sequence: Sequence, count: int) -> int:
        drafted = draft(self, sequence, count)
        cache, chain = self._lifecycle.cache, sequence.chain
        while chain is not None and chain.depth < (sequence.computed + drafted) // cache.block_size:
            chain = cache._extend(sequence, chain)
        return drafted

    patch(StepPlanner, "_draft", faulty)


def hash_without_comparison(patch: Patch) -> None:
    patch(PrefixIndex, "_digest", lambda self, head, content: bytes([sum(head + content) % 4]))

    def faulty_child(self: PrefixIndex, parent: Node, digest: bytes, tokens: tuple[int, ...]) -> Node | None:
        return self._full.get(digest)

    patch(PrefixIndex, "child", faulty_child)


def parent_not_compared(patch: Patch) -> None:
    patch(PrefixIndex, "child_digest", lambda self, parent, tokens: self._digest(b"", repr(tuple(tokens)).encode()))

    def faulty_child(self: PrefixIndex, parent: Node, digest: bytes, tokens: tuple[int, ...]) -> Node | None:
        node = self._full.get(digest)
        return node if node is not None and node.tokens == tokens else None

    patch(PrefixIndex, "child", faulty_child)


def no_copy_on_write(patch: Patch) -> None:
    patch(StepPlanner, "_make_writable", lambda self, sequence, position: _Writable(None))


def copy_left_out_of_the_plan(patch: Patch) -> None:
    def faulty(self: StepPlanner, sequence: Sequence, position: int, target: int) -> PageCopy | None:
        self._lifecycle.cache.release_block(sequence.table[position], None)
        sequence.table[position] = target
        return None

    patch(StepPlanner, "_copy", faulty)


def copy_after_write(patch: Patch) -> None:
    execute = ToyExecutor.execute

    def faulty(self: ToyExecutor, plan: StepPlan) -> StepResult:
        result = execute(self, plan)
        for copy in plan.copies:
            self.pages[copy.target] = list(self.pages[copy.source])
        return result

    patch(ToyExecutor, "execute", faulty)


def source_of_a_copy_not_kept(patch: Patch) -> None:
    patch(BlockPool, "pin", lambda self, block: None)
    patch(BlockPool, "unpin", lambda self, block, **how: None)


def fork_without_references(patch: Patch) -> None:
    fork = BlockCache.fork

    def faulty(self: BlockCache, parent: Sequence, child: Sequence) -> None:
        fork(self, parent, child)
        for block in child.table:
            self.pool._references[block] -= 1

    patch(BlockCache, "fork", faulty)


def preemption_loses_the_arrival(patch: Patch) -> None:
    preempt = Lifecycle.preempt

    def faulty(self: Lifecycle, sequence: Sequence, cause: str) -> None:
        self._arrivals += 1
        sequence.state.order = self._arrivals
        preempt(self, sequence, cause)
        sequence.rank = (sequence.rank[0], self._arrivals, sequence.rank[2])
        self.queue.put_back(sequence)

    patch(Lifecycle, "preempt", faulty)


def preemption_loses_a_token(patch: Patch) -> None:
    preempt = Lifecycle.preempt

    def faulty(self: Lifecycle, sequence: Sequence, cause: str) -> None:
        preempt(self, sequence, cause)
        del sequence.outputs[-1:]

    patch(Lifecycle, "preempt", faulty)


def an_older_one_is_preempted(patch: Patch) -> None:
    def faulty(self: StepPlanner, sequence: Sequence) -> bool:
        for victim in self._lifecycle.running:
            if victim is not sequence and victim.epoch is None:
                self._withdraw(victim)
                self._lifecycle.preempt(victim, "blocks")
                return True
        return False

    patch(StepPlanner, "_preempt_younger", faulty)


def hit_counted_at_every_admission(patch: Patch) -> None:
    start = Lifecycle.start

    def faulty(self: Lifecycle, sequence: Sequence, match: Any, num_reserved: int) -> None:
        again = sequence.state.started
        start(self, sequence, match, num_reserved)
        if again:
            self.counters.prefix_hit_tokens += sequence.computed

    patch(Lifecycle, "start", faulty)


def tenants_share(patch: Patch) -> None:
    patch(Lifecycle, "_namespace", lambda self, request: "" if self.settings.sharing else None)


def tail_indexed_with_a_token_too_many(patch: Patch) -> None:
    add_tail = PrefixIndex.add_tail

    def faulty(self: PrefixIndex, parent: Node, tokens: tuple[int, ...], block: int) -> None:
        longer = (*tokens, tokens[-1]) if len(tokens) + 1 < self.block_size else tokens
        add_tail(self, parent, longer, block)

    patch(PrefixIndex, "add_tail", faulty)


def tail_indexed_while_shared(patch: Patch) -> None:
    patch(BlockPool, "references", lambda self, block: min(1, self._references[block]))


def evicted_and_still_findable(patch: Patch) -> None:
    patch(BlockCache, "_evict", lambda self, block: self.pool.discard(block))


def everything_from_the_cache(patch: Patch) -> None:
    patch(Sequence, "reusable", property(lambda self: self.total))


def prompt_logprobs_from_the_cache(patch: Patch) -> None:
    patch(Sequence, "reusable", property(lambda self: self.total - 1))


def budget_not_kept(patch: Patch) -> None:
    take = BlockPool.take

    def faulty(self: BlockPool) -> int | None:
        limit, self.limit = self.limit, self.capacity
        block = take(self)
        self.limit = limit
        return block

    patch(BlockPool, "take", faulty)


def late_result_applied(patch: Patch) -> None:
    def faulty(self: StepCommit, drafts: Any) -> None:
        for draft in drafts:
            draft.sequence.epoch = None
            self._apply_row(draft)

    patch(StepCommit, "apply", faulty)


def waits_for_a_block_that_nobody_computes(patch: Patch) -> None:
    patch(Lifecycle, "_forget_computing", lambda self, sequence, computed: None)


def chunk_one_token_over_the_budget(patch: Patch) -> None:
    allowance = StepPlanner._allowance

    def faulty(self: StepPlanner, context_tokens: int, most: int) -> int:
        return min(most, allowance(self, context_tokens, most) + 1)

    patch(StepPlanner, "_allowance", faulty)


FAULTS: tuple[Fault, ...] = (
    no_fence,
    double_free,
    leak_on_abort_during_a_step,
    findable_one_token_before_the_block_is_full,
    findable_before_it_is_written,
    hash_without_comparison,
    parent_not_compared,
    no_copy_on_write,
    copy_left_out_of_the_plan,
    copy_after_write,
    source_of_a_copy_not_kept,
    fork_without_references,
    preemption_loses_the_arrival,
    preemption_loses_a_token,
    an_older_one_is_preempted,
    hit_counted_at_every_admission,
    tenants_share,
    tail_indexed_with_a_token_too_many,
    tail_indexed_while_shared,
    evicted_and_still_findable,
    everything_from_the_cache,
    prompt_logprobs_from_the_cache,
    budget_not_kept,
    late_result_applied,
    waits_for_a_block_that_nobody_computes,
    chunk_one_token_over_the_budget,
)


# These need tenants to be seen at all.
ONLY_SHARING = (tenants_share,)


class SharingMachine(SchedulerMachine):
    fixed: ClassVar[dict[str, Any]] = {"prefix_sharing_mode": "Tenant", "num_blocks": 12}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_machine_sees(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch.setattr)
    machine: type[SchedulerMachine] = SharingMachine if fault in ONLY_SHARING else SchedulerMachine
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(machine, settings=machine_settings(150, shrink=False))
