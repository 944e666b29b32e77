"""A scheduler, a toy model and everything that may happen to them; each move checks what must hold after it."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

from pagefleet_runtime.block_pool import BlockState
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.plan import StepPlan
from pagefleet_runtime.protocol import PolicyChange, TokenOutput
from pagefleet_runtime.request import GenerationRequest, SequenceKey
from pagefleet_runtime.scheduler import Scheduler
from pagefleet_runtime.scheduler_settings import SchedulerSettings
from pagefleet_runtime.sequence import RequestState, Sequence, SequenceStatus
from pagefleet_runtime.snapshot import EngineSnapshot
from pagefleet_runtime.waiting_queue import MOST_OVERTAKEN
from tests.runtime.builders import HASH_KEY, step_limit
from tests.runtime.invariants import Look, check_memory, check_plan, used_slots
from tests.runtime.toy_executor import ToyExecutor, reference_ids, reference_prompt_logprobs

_REBUILD_EVERY = 16


@dataclass
class Record:
    """What the world knows of one accepted request."""

    request: GenerationRequest
    arrival: int
    expected: dict[int, tuple[int, ...]]
    given: dict[int, list[int]]
    ends: dict[int, str] = field(default_factory=dict)
    cached_tokens: set[int] = field(default_factory=set)
    overtaken: int = 0


class World:
    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings, HASH_KEY)
        self.executor = ToyExecutor(settings.num_blocks, settings.block_size)
        self.now_seconds = 0.0
        self.records: dict[str, Record] = {}
        self.outstanding: list[StepPlan] = []
        self.num_steps = 0
        self.was_reset = False
        self.counted: Counter[str] = Counter()
        self._reached: dict[Sequence, int] = {}  # most tokens that the sequence ever had in its table
        self._last = EngineSnapshot()
        self._ended: list[str] = []

    @property
    def lifecycle(self) -> Lifecycle:
        return self.scheduler._lifecycle

    def look(self) -> Look:
        return Look(self.lifecycle, self.executor.pages, tuple(self.outstanding))

    # --- requests

    def submit(self, request: GenerationRequest) -> bool:
        """Submit, and expect a refusal exactly where the numbers say so."""
        prompt, asked = len(request.prompt_ids), request.params.max_tokens
        limit = min(self.settings.max_length_tokens, self.lifecycle.pool.limit * self.settings.block_size)
        too_long = prompt + asked > limit
        too_many = request.num_choices > self.lifecycle.settings.max_sequences
        if self.settings.reserving:
            too_many = (
                too_many or request.num_choices * -(-limit // self.settings.block_size) > self.lifecycle.pool.limit
            )
        unstarted = {s.state for s in self.look().open_sequences() if not s.state.started}
        full = len(unstarted) >= self.settings.max_queue
        try:
            self.scheduler.submit(request, self.now_seconds)
        except RequestRefused as refused:
            self.counted["refused"] += 1
            if full and not (too_long or too_many):
                assert refused.refusal.status == 429 and refused.refusal.retry_after_seconds
                return False
            assert refused.refusal.status == 400 and (too_long or too_many), f"15: refused without need: {refused}"
            if too_long:
                message = refused.refusal.message
                assert all(str(number) in message for number in (limit, prompt, asked)), "15: numbers are missing"
            return False
        assert not (too_long or too_many or full), "15: what can never be served was accepted"
        choices = range(request.num_choices)
        eos = self.settings.eos_token_ids
        expected = {c: reference_ids(request.prompt_ids, request.params, c, eos) for c in choices}
        record = Record(request, len(self.records), expected, {c: [] for c in choices})
        self.records[request.request_id] = record
        self.settle()
        return True

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        self._end_open(request_id, "cancelled")
        self.scheduler.abort(request_id)
        self.settle()

    def stop_choice(self, request_id: str, choice: int) -> None:
        self.scheduler.stop_choice(request_id, choice)
        self.records[request_id].ends.setdefault(choice, "stop")
        self.settle()

    def _end_open(self, request_id: str, reason: str) -> None:
        record = self.records[request_id]
        for choice in record.given:
            record.ends.setdefault(choice, reason)

    def open_requests(self) -> list[str]:
        return [name for name, record in self.records.items() if len(record.ends) < len(record.given)]

    # --- steps

    def plan(self, max_tokens: int | None = None, seconds: float = 10.0) -> StepPlan | None:
        before = {s: s.status for s in self.look().open_sequences()}
        oldest, in_use = self._oldest(), self.lifecycle.pool.num_in_use
        twin = self._rebuilt() if self.num_steps % _REBUILD_EVERY == 0 else None
        earlier, slots = tuple(self.outstanding), used_slots(self.lifecycle)
        plan = self.scheduler.plan(self.now_seconds, step_limit(max_tokens, seconds))
        if twin is not None:
            assert twin.plan(self.now_seconds, step_limit(max_tokens, seconds)) == plan, (
                "16: the plan has other sources"
            )
        if plan is None:
            assert earlier or not self.scheduler.has_work(), "13: there is work, but no step"
        else:
            self.outstanding.append(plan)
            for draft in self.scheduler._drafts[plan.epoch]:
                for block in draft.sequence.table[-(-draft.start // self.settings.block_size) :]:
                    self.executor.poison(block)
            check_plan(self.look(), plan, max_tokens, earlier, slots)
            self.counted["copies"] += len(plan.copies)
        assert self.lifecycle.pool.num_in_use <= max(self.lifecycle.pool.limit, in_use), "1: over the budget"
        self._note_moves(before, oldest)
        self.settle()
        return plan

    def finish(self, plan: StepPlan, fail_keys: frozenset[SequenceKey] = frozenset(), whole: bool = False) -> None:
        """Run a plan that is out, and commit it; or let rows, or the whole step, fail."""
        self.outstanding.remove(plan)
        rows = [(row, self._sequence_of(plan, row.key)) for row in plan.rows]
        if whole:
            outputs = self.scheduler.fail_step(plan, "the device is gone")
        else:
            self.executor.fail_keys = set(fail_keys)
            result = self.executor.execute(plan)
            failed = {failure.key for failure in result.failures}
            for row, sequence in rows:
                dead = row.key in failed and not any(s.key not in failed for s in row.samples)
                if sequence is not None and not dead:
                    self._note_computed(sequence, row.start_position, row.start_position + len(row.token_ids))
            outputs = self.scheduler.commit(plan, result, self.now_seconds)
        self.num_steps += 1
        self.counted["steps"] += 1
        for output in outputs:
            self._take(output, may_fail=whole or bool(fail_keys))
        for sequence in self.look().open_sequences():
            self._reached.setdefault(sequence, sequence.computed)
        self.settle()

    def step(self, max_tokens: int | None = None, seconds: float = 10.0) -> bool:
        plan = self.plan(max_tokens, seconds)
        if plan is not None:
            self.finish(plan)
        return plan is not None

    def drain(self, max_tokens: int | None = None) -> None:
        """Run everything to its end; it must come within a number of steps that the work allows."""
        while self.outstanding:
            self.finish(self.outstanding[0])
        most = 50 + 40 * sum(
            r.request.num_choices * (len(r.request.prompt_ids) + r.request.params.max_tokens)
            for r in self.records.values()
        )
        while self.scheduler.has_work():
            self.step(max_tokens)
            most -= 1
            assert most > 0, "13: no end in sight"
        assert not self.open_requests(), f"20: never ended: {self.open_requests()}"
        counts = self.lifecycle.pool.counts()
        assert counts.live == 0 and counts.slots_live == 0, "10: blocks are held although nothing runs"
        assert not self.lifecycle.computing, "10: a block is waited for that nobody computes"

    # --- time and settings

    def tick(self, seconds: float) -> None:
        self.now_seconds += seconds
        limit = self.lifecycle.settings.queue_timeout_seconds
        late = {
            s.state.request.request_id
            for s in self.look().open_sequences()
            if not s.state.started and self.now_seconds - s.state.submitted_seconds > limit
        }
        rejected = self.scheduler.expire(self.now_seconds)
        assert {r.request_id for r in rejected} == late, "20: the wrong requests timed out"
        for rejection in rejected:
            assert rejection.refusal.status == 503 and rejection.refusal.retry_after_seconds is not None
            self._end_open(rejection.request_id, "timeout")
        ttl = self.lifecycle.settings.retention_ttl_seconds
        if ttl is not None:
            assert all(self.now_seconds - used <= ttl for used in self.lifecycle.pool._idle.values()), (
                "an old block stays"
            )
        self.settle()

    def change(self, change: PolicyChange) -> bool:
        before = {s: s.status for s in self.look().open_sequences()}
        oldest = self._oldest()
        try:
            in_force = self.scheduler.change_policy(change)
        except RequestRefused as refused:
            assert refused.refusal.status == 400
            return False
        assert change.kv_blocks is None or in_force.kv_blocks == change.kv_blocks
        if change.reset_prefix_cache:
            self.was_reset = True
            assert not self.lifecycle.pool.counts().cached, "a reset leaves cached blocks"
        self._note_moves(before, oldest)
        if not self.outstanding and not self.settings.reserving:
            assert self.lifecycle.pool.num_in_use <= self.lifecycle.pool.limit, "1: more blocks are in use than allowed"
        self.settle()
        return True

    # --- after every move

    def settle(self) -> None:
        check_memory(self.look())
        pool = self.lifecycle.pool
        out = {block for plan in self.outstanding for row in plan.rows for block in row.block_table}
        for block in range(pool.capacity):
            if pool.state(block) is BlockState.FREE and block not in out:
                self.executor.poison(block)
        self._check_figures()

    def _take(self, output: TokenOutput, may_fail: bool) -> None:
        record = self.records[output.request_id]
        choice = output.choice_index
        assert choice not in record.ends, f"20: {output} came after the end"
        given, expected = record.given[choice], record.expected[choice]
        if output.prompt_logprobs is not None:
            assert choice == 0 and not given, "20: the prompt's logprobs came late"
            got = tuple(logprob.logprob for logprob in output.prompt_logprobs)
            assert got == reference_prompt_logprobs(record.request.prompt_ids), "17: the prompt's logprobs are wrong"
        elif choice == 0 and not given and output.finish_reason != "error":
            assert record.request.params.prompt_logprobs is None, "20: the prompt's logprobs are missing"
        record.cached_tokens.add(output.cached_tokens)
        assert len(record.cached_tokens) == 1, "21: the tokens from the cache changed"
        assert output.cached_tokens < len(record.request.prompt_ids), "17: nothing of the prompt was computed"
        if output.token_id is not None:
            assert output.token_id == expected[len(given)], f"17: {output} should be {expected}"
            given.append(output.token_id)
            self.counted["generated"] += 1
        if output.finish_reason is not None:
            record.ends[choice] = output.finish_reason
            if output.finish_reason == "error":
                assert may_fail and output.error, "20: an error came from nowhere"
            else:
                assert tuple(given) == expected, "20: tokens are missing"
                params = record.request.params
                eos = () if params.ignore_eos else self.settings.eos_token_ids
                stopped = bool(given) and given[-1] in (*params.stop_token_ids, *eos)
                assert output.ends_text == stopped
                assert output.finish_reason == ("stop" if stopped else "length")
        else:
            assert len(given) < len(expected), "20: the end is missing"

    def _sequence_of(self, plan: StepPlan, key: SequenceKey) -> Sequence | None:
        """The open sequence that a row of the plan is of."""
        for draft in self.scheduler._drafts[plan.epoch]:
            if draft.key == key and draft.sequence.status is SequenceStatus.RUNNING:
                return draft.sequence
        return None

    def _note_computed(self, sequence: Sequence, start: int, end: int) -> None:
        self.counted["computed"] += end - start
        reached = self._reached.get(sequence, 0)
        self.counted["recomputed"] += max(0, min(end, reached) - start)
        self._reached[sequence] = max(reached, end)

    def _rebuilt(self) -> Scheduler:
        """A scheduler with the same sequences, whose lists and caches were made anew."""
        twin = deepcopy(self.scheduler)
        lifecycle, pool = twin._lifecycle, twin._lifecycle.pool
        lifecycle.running.sort(key=lambda sequence: sequence.rank)
        for state in lifecycle.requests.values():
            for sequence in state.sequences():
                sequence.digests.clear()
        lifecycle.queue._heap.clear()
        for sequence in reversed(lifecycle.queue.sequences()):
            lifecycle.queue.put_back(sequence)
        pool._free = [
            block
            for block in range(pool.capacity)
            if pool.state(block) is BlockState.FREE and block not in pool._fenced
        ]
        return twin

    def _oldest(self) -> Sequence | None:
        """The running sequence that nobody may preempt."""
        by_priority = self.settings.policy == "Priority"

        def rank(sequence: Sequence) -> tuple[int, int, int]:
            request = sequence.state.request
            priority = request.priority if by_priority else 0
            return priority, self.records[request.request_id].arrival, sequence.key.choice_index

        running = [s for s in self.look().open_sequences() if s.status is SequenceStatus.RUNNING]
        return min(running, key=rank, default=None)

    def _note_moves(self, before: dict[Sequence, SequenceStatus], oldest: Sequence | None) -> None:
        """Count who was admitted and who was preempted, and check that it was nobody's unfair loss."""
        waiting = [s for s, status in before.items() if status is SequenceStatus.WAITING]
        for sequence, status in before.items():
            if status is SequenceStatus.RUNNING and sequence.status is SequenceStatus.WAITING:
                self.counted["preempted"] += 1
                assert sequence is not oldest, "13: the oldest was preempted"
            if status is SequenceStatus.WAITING and sequence.status is SequenceStatus.RUNNING:
                self._note_admitted(sequence.state, sequence)
                for other in waiting:
                    passed = other.state.order < sequence.state.order and other.status is SequenceStatus.WAITING
                    if passed and not other.state.started and not other.waits_for_block:
                        record = self.records[other.state.request.request_id]
                        record.overtaken += 1
                        assert record.overtaken <= MOST_OVERTAKEN, "14: overtaken too often"

    def _note_admitted(self, state: RequestState, sequence: Sequence) -> None:
        self._reached[sequence] = max(self._reached.get(sequence, 0), sequence.computed)
        name = state.request.request_id
        if self.counted[f"started {name}"] == 0:
            self.counted[f"started {name}"] = 1
            self.counted["prompt"] += state.prompt_length
            self.counted["hit"] += sequence.computed
            if state.request.params.prompt_logprobs is not None:
                assert sequence.computed == 0, "17: a prompt whose logprobs are wanted came from the cache"

    def _check_figures(self) -> None:
        """21: gauges are what the state says, counters are what happened."""
        figures = self.scheduler.snapshot(self.now_seconds)
        lifecycle, sequences = self.lifecycle, self.look().open_sequences()
        running = [s for s in sequences if s.status is SequenceStatus.RUNNING]
        waiting = {s.state.request.request_id: s.state for s in sequences if s.status is SequenceStatus.WAITING}
        assert figures.blocks_free + figures.blocks_cached + figures.blocks_live == figures.blocks_total, "21: blocks"
        if figures.blocks_free > 0:
            assert figures.blocks_total == lifecycle.pool.limit, "21: the budget"
        assert figures.running == len(running), "21: running"
        assert figures.waiting == len(waiting), "21: waiting"
        assert figures.queued_tokens == sum(s.prompt_length for s in waiting.values()), "21: queued tokens"
        assert figures.slots_allocated == figures.blocks_live * self.settings.block_size, "21: slots"
        if not self.outstanding and not self.was_reset:
            assert figures.slots_live == self._slots_in_use(running), "21: live slots"
        counted = self.counted
        assert figures.steps == counted["steps"], "21: steps"
        assert figures.generated_tokens == counted["generated"], "21: generated tokens"
        assert figures.computed_tokens == counted["computed"], "21: computed tokens"
        assert figures.copies_on_write == counted["copies"], "21: copies on write"
        assert figures.prompt_tokens == counted["prompt"], "21: prompt tokens"
        assert figures.prefix_hit_tokens == counted["hit"], "21: prefix hits"
        assert figures.prefix_missed_tokens == counted["prompt"] - counted["hit"], "21: prefix misses"
        assert sum(figures.preemptions.values()) == counted["preempted"], "21: preemptions"
        assert sum(figures.recomputed_tokens.values()) == counted["recomputed"], "21: recomputed tokens"
        self._check_outcomes(figures)
        self._last = figures

    def _check_outcomes(self, figures: EngineSnapshot) -> None:
        ends = [set(r.ends.values()) for r in self.records.values() if len(r.ends) == len(r.given)]
        self._ended.extend(self.scheduler.take_ended_requests())
        assert len(self._ended) == len(set(self._ended)) == len(ends), "20: a request ended twice, or unnoticed"
        assert sum(figures.outcomes.values()) == len(ends) + self.counted["refused"], "21: outcomes"
        for name in ("cancelled", "timeout"):
            assert figures.outcomes.get(name, 0) == sum(name in reasons for reasons in ends), f"21: {name}"
        for name in ("epoch", "evicted_blocks", "steps", "computed_tokens", "generated_tokens"):
            assert getattr(figures, name) >= getattr(self._last, name), f"21: {name} went back"

    def _slots_in_use(self, running: list[Sequence]) -> int:
        size = self.settings.block_size
        fills: dict[int, int] = {}
        for sequence in running:
            for position, block in enumerate(sequence.table):
                fill = min(size, sequence.computed - position * size)
                fills[block] = max(fills.get(block, 0), fill)
        for block, node in self.lifecycle.cache.index._by_block.items():
            if block in fills:
                fills[block] = max(fills[block], len(node.tokens))
        return sum(fills.values())
