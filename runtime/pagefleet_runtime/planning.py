"""The next step: decodes first, then chunks of prefill, then new sequences, within tokens and time.

Takes blocks as rows need them. Where none is left, the youngest running sequence gives its own up, never an older one.
"""

from dataclasses import dataclass

from pagefleet_runtime.admission import Verdict, decide
from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.plan import PageCopy, Row, SampleSpec
from pagefleet_runtime.request import SequenceKey
from pagefleet_runtime.scheduler_settings import StepLimit
from pagefleet_runtime.sequence import Sequence, SequenceStatus
from pagefleet_runtime.step_cost import StepLoad

# How many waiting sequences that can't start are looked past in one step.
_SKIP_WINDOW = 16
_NO_TOKEN_LIMIT = 1 << 20
# Prefill may take at least this share of what a step takes anyway: where decodes alone fill the time, a step gets
# a third longer, but prompts don't wait for ever, and a step that is slow whatever is in it is worth its while.
_PREFILL_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Draft:
    """A row to be, with what it needs to be undone or confirmed."""

    sequence: Sequence
    key: SequenceKey
    start: int
    end: int
    copy: PageCopy | None
    samples: tuple[SequenceKey, ...]  # choices that sample from its last token


class StepPlanner:
    """One step while it is being planned. `drafts` is the result."""

    def __init__(self, lifecycle: Lifecycle, limit: StepLimit) -> None:
        self.drafts: dict[Sequence, Draft] = {}
        self._lifecycle = lifecycle
        self._limit = limit
        self._cost = limit.cost
        self._size = lifecycle.settings.block_size
        self._seconds_left = limit.seconds - limit.cost.seconds(StepLoad())
        self._tokens_left = _NO_TOKEN_LIMIT if limit.max_tokens is None else limit.max_tokens
        self._prefilled = False
        self._preempted = False
        # Sources of this plan's copies. They are copied before anything is written, so their last owner may write.
        self._sources: dict[int, int] = {}

    def build(self) -> None:
        prefills = [s for s in self._lifecycle.running if s.epoch is None and s.uncomputed > 1]
        self._plan_decodes(has_prefill=bool(prefills))
        fixed_seconds = self._limit.seconds - self._seconds_left
        self._seconds_left = max(self._seconds_left, _PREFILL_SHARE * fixed_seconds)
        for sequence in prefills:
            self._plan_chunk(sequence)
        # A step that had to preempt has no room for anybody new, least of all for its own victims.
        if not self._preempted or not self.drafts:
            self._admit()

    @property
    def token_budget(self) -> int:
        """How many tokens this step could take: those it has, and those that still fit."""
        planned = sum(draft.end - draft.start for draft in self.drafts.values())
        return planned + self._allowance(0, _NO_TOKEN_LIMIT)

    # --- the three phases

    def _plan_decodes(self, has_prefill: bool) -> None:
        lifecycle = self._lifecycle
        free_slots = lifecycle.settings.max_sequences - lifecycle.used_slots
        room = self._tokens_left
        if has_prefill or (free_slots > 0 and len(lifecycle.queue) > 0):
            room = max(1, room - self._size)
        for sequence in tuple(lifecycle.running):
            if room < 1:
                return
            if sequence.epoch is None and sequence.uncomputed == 1 and sequence.status is SequenceStatus.RUNNING:
                room -= self._draft(sequence, 1)

    def _plan_chunk(self, sequence: Sequence) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            count = self._chunk(sequence)
            if count > 0 and self._draft(sequence, count) > 0:
                self._prefilled = True

    def _admit(self) -> None:
        lifecycle, queue = self._lifecycle, self._lifecycle.queue
        free_slots = lifecycle.settings.max_sequences - lifecycle.used_slots
        promised = sum(self._still_to_take(sequence) for sequence in lifecycle.running)
        skipped: list[Sequence] = []
        while free_slots > 0 and len(skipped) < _SKIP_WINDOW and self._allowance(0, 1) > 0:
            sequence = queue.pop()
            if sequence is None:
                break
            decision = decide(lifecycle, sequence, free_slots, promised)
            sequence.waits_for_block = decision.verdict is Verdict.WAIT_FOR_BLOCK
            if decision.verdict is not Verdict.ADMIT:
                skipped.append(sequence)
                if decision.verdict is Verdict.NO_ROOM and queue.is_overdue(sequence):
                    break
                continue
            free_slots -= sequence.num_choices
            lifecycle.start(sequence, decision.match, decision.num_reserved)
            self._plan_chunk(sequence)
            promised += self._still_to_take(sequence)
            if any(queue.is_overdue(other) and not other.waits_for_block for other in skipped):
                break
        for sequence in skipped:
            queue.put_back(sequence)

    # --- one row

    def _allowance(self, context_tokens: int, most: int) -> int:
        """How many tokens of prefill may still go into the step, `most` at most."""
        most = min(most, self._tokens_left)
        within = self._cost.prefill_tokens_within(self._seconds_left, context_tokens, most) if most > 0 else 0
        # One block goes in whatever the time says, so that prompts come forward beside many decodes.
        return within if self._prefilled else max(within, min(self._size, most))

    def _chunk(self, sequence: Sequence) -> int:
        """How many tokens the sequence computes next; chunks end at block edges where they can."""
        start, state = sequence.computed, sequence.state
        end = start + self._allowance(start, sequence.uncomputed)
        if end < sequence.total:
            edge = end // self._size * self._size
            if edge <= start and self._prefilled:
                return 0
            end = edge if edge > start else end
        known = len(state.prompt_logprobs)
        if state.lacks_prompt_logprobs and start < known:
            # The row with the logprobs that are still missing starts where they do.
            end = min(end, known)
        return end - start

    def _still_to_take(self, sequence: Sequence) -> int:
        if self._lifecycle.settings.reserving:
            return 0
        return max(0, -(-sequence.total // self._size) - len(sequence.table))

    def _draft(self, sequence: Sequence, count: int) -> int:
        """Put the sequence's next tokens into the step, as many of `count` as there are blocks for; return how many."""
        start, table = sequence.computed, sequence.table
        copy = None
        if start % self._size:
            writable = self._make_writable(sequence, start // self._size)
            if writable is None:
                return 0
            copy = writable.copy
        while len(table) * self._size < start + count:
            block = self._take(sequence)
            if block is None:
                break
            table.append(block)
        end = min(start + count, len(table) * self._size)
        if end <= start:
            return 0
        self.drafts[sequence] = Draft(sequence, sequence.key, start, end, copy, self._samples(sequence, end))
        self._tokens_left -= end - start
        self._seconds_left -= self._cost.row_seconds(start, end - start)
        return end - start

    def _samples(self, sequence: Sequence, end: int) -> tuple[SequenceKey, ...]:
        state = sequence.state
        if end < sequence.total or state.request.params.max_tokens == 0:
            return ()
        if state.forked:
            return (sequence.key,)
        return tuple(SequenceKey(state.request.request_id, choice) for choice in state.open_choices)

    # --- blocks

    def _make_writable(self, sequence: Sequence, position: int) -> "_Writable | None":
        """See that the sequence alone owns the block that it writes next; None where it has to wait for that."""
        lifecycle = self._lifecycle
        pool, cache, table = lifecycle.pool, lifecycle.cache, sequence.table
        while True:
            block = table[position]
            alone, findable = pool.references(block) == 1, cache.index.holds(block)
            if alone and not findable:
                return None if self._in_other_step(block) else _Writable(None)
            target = lifecycle.take_block(sequence)
            if target is not None:
                return _Writable(self._copy(sequence, position, target))
            if alone:
                if self._in_other_step(block):
                    return None
                cache.make_private(block, sequence.computed % self._size)
                return _Writable(None)
            if not self._preempt_younger(sequence):
                return None

    def _copy(self, sequence: Sequence, position: int, target: int) -> PageCopy:
        source = sequence.table[position]
        self._lifecycle.pool.pin(source)
        self._sources[source] = self._sources.get(source, 0) + 1
        self._lifecycle.cache.release_block(source, None)
        sequence.table[position] = target
        return PageCopy(source, target)

    def _in_other_step(self, block: int) -> bool:
        """Whether a step that is still out may read or write the block."""
        pool = self._lifecycle.pool
        return pool.is_fenced(block) or pool.pins(block) > self._sources.get(block, 0)

    def _take(self, sequence: Sequence) -> int | None:
        while True:
            block = self._lifecycle.take_block(sequence)
            if block is not None or not self._preempt_younger(sequence):
                return block

    def _preempt_younger(self, sequence: Sequence) -> bool:
        lifecycle = self._lifecycle
        if lifecycle.settings.reserving:
            return False
        for victim in reversed(lifecycle.running):
            if victim.rank <= sequence.rank:
                return False
            if victim.epoch is None:
                self._withdraw(victim)
                lifecycle.preempt(victim, "blocks")
                self._preempted = True
                return True
        return False

    def _withdraw(self, victim: Sequence) -> None:
        draft = self.drafts.pop(victim, None)
        if draft is None:
            return
        self._tokens_left += draft.end - draft.start
        self._seconds_left += self._cost.row_seconds(draft.start, draft.end - draft.start)
        if draft.copy is not None:
            self._sources[draft.copy.source] -= 1
        self._lifecycle.undo_growth(victim, draft.copy)


@dataclass(frozen=True, slots=True)
class _Writable:
    copy: PageCopy | None


def row_of(draft: Draft) -> Row:
    """Return the draft as the executor's value."""
    sequence, state = draft.sequence, draft.sequence.state
    request = state.request
    wants_logprobs = state.lacks_prompt_logprobs and draft.start >= len(state.prompt_logprobs)
    return Row(
        key=draft.key,
        token_ids=sequence.tokens(draft.start, draft.end),
        start_position=draft.start,
        block_table=tuple(sequence.table),
        samples=tuple(SampleSpec(key, request.params, request.prompt_ids, sequence.outputs) for key in draft.samples),
        prompt_logprobs=request.params.prompt_logprobs if wants_logprobs else None,
        next_prompt_ids=request.prompt_ids[draft.start + 1 : draft.end + 1] if wants_logprobs else (),
    )
