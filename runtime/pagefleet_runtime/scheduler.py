"""The scheduler: requests go in, plans come out, results go in, outputs come out. No clock, no threads, no tensors.

Used by one thread. Plans may overlap: a sequence is in one step at a time, and the blocks it gives back while it is
in a step are handed out only after that step was committed.
"""

from dataclasses import replace

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.admission import changed_settings, refuse_if_full, refuse_if_impossible, retry_after
from pagefleet_runtime.commit import StepCommit, fail_sequence
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.plan import StepPlan, StepResult
from pagefleet_runtime.planning import Draft, StepPlanner, row_of
from pagefleet_runtime.protocol import PolicyChange, Rejected, TokenOutput
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.scheduler_settings import SchedulerSettings, StepLimit
from pagefleet_runtime.self_check import broken_invariants
from pagefleet_runtime.snapshot import EngineSnapshot


class Scheduler:
    def __init__(self, settings: SchedulerSettings, hash_key: bytes) -> None:
        self._lifecycle = Lifecycle(settings, hash_key)
        # Of each step that is planned and not yet committed.
        self._drafts: dict[int, tuple[Draft, ...]] = {}

    # --- requests

    def submit(self, request: GenerationRequest, now_seconds: float) -> None:
        """Queue a request. Raises RequestRefused where it can never be served, or the queue is full."""
        lifecycle = self._lifecycle
        lifecycle.cache.now_seconds = now_seconds
        try:
            refuse_if_impossible(lifecycle, request)
            refuse_if_full(lifecycle, now_seconds)
        except RequestRefused:
            lifecycle.counters.outcomes["refused"] += 1
            raise
        lifecycle.enqueue(request, now_seconds)

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more, at any time. Unknown and ended ids are ignored."""
        state = self._lifecycle.requests.get(request_id)
        if state is not None:
            self._lifecycle.end_all(state, "cancelled")

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        """End one choice whose text is complete. Unknown and ended choices are ignored."""
        state = self._lifecycle.requests.get(request_id)
        if state is not None and choice_index in state.open_choices:
            self._lifecycle.end_choice(state, choice_index, "stop")

    def expire(self, now_seconds: float) -> tuple[Rejected, ...]:
        """End requests that waited too long for their first step, and evict cached blocks past their retention."""
        lifecycle = self._lifecycle
        lifecycle.cache.now_seconds = now_seconds
        if lifecycle.settings.retention_ttl_seconds is not None:
            lifecycle.cache.expire(now_seconds - lifecycle.settings.retention_ttl_seconds)
        rejected = []
        limit = lifecycle.settings.queue_timeout_seconds
        oldest = lifecycle.queue.oldest_unstarted()
        while oldest is not None and now_seconds - oldest.state.submitted_seconds > limit:
            refusal = Refusal(
                503,
                "queue_timeout",
                f"the request waited {limit} seconds without being started; try again later",
                retry_after_seconds=retry_after(lifecycle, now_seconds),
            )
            rejected.append(Rejected(oldest.state.request.request_id, refusal))
            lifecycle.end_all(oldest.state, "timeout")
            oldest = lifecycle.queue.oldest_unstarted()
        return tuple(rejected)

    def take_ended_requests(self) -> tuple[str, ...]:
        """Return the ids of requests that have ended, for whatever reason, since the last call."""
        ended = tuple(self._lifecycle.ended_requests)
        self._lifecycle.ended_requests.clear()
        return ended

    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._lifecycle.requests)

    # --- steps

    def plan(self, now_seconds: float, limit: StepLimit) -> StepPlan | None:
        """Return the next step, or None where nothing can run now. Every plan must be committed or failed."""
        lifecycle = self._lifecycle
        lifecycle.cache.now_seconds = now_seconds
        self._keep_limit()
        planner = StepPlanner(lifecycle, limit)
        planner.build()
        if not planner.drafts:
            return None
        epoch = lifecycle.pool.begin_step()
        drafts = tuple(planner.drafts.values())
        self._drafts[epoch] = drafts
        for draft in drafts:
            draft.sequence.epoch = epoch
        copies = tuple(draft.copy for draft in drafts if draft.copy is not None)
        lifecycle.counters.copies_on_write += len(copies)
        lifecycle.counters.token_budget = planner.token_budget
        return StepPlan(epoch, copies, tuple(row_of(draft) for draft in drafts))

    def commit(self, plan: StepPlan, result: StepResult, now_seconds: float) -> tuple[TokenOutput, ...]:
        """Take a step's result. What it says of requests that ended in the meantime is ignored."""
        lifecycle = self._lifecycle
        lifecycle.cache.now_seconds = now_seconds
        commit = StepCommit(lifecycle, result)
        commit.apply(self._drafts.pop(plan.epoch))
        lifecycle.counters.step_seconds += result.duration_seconds
        self._retire(plan)
        return tuple(commit.outputs)

    def fail_step(self, plan: StepPlan, message: str) -> tuple[TokenOutput, ...]:
        """The whole step failed: everything that was in it ends with an error."""
        outputs: list[TokenOutput] = []
        for draft in self._drafts.pop(plan.epoch):
            draft.sequence.epoch = None
            outputs.extend(fail_sequence(self._lifecycle, draft.sequence, message))
        self._retire(plan)
        return tuple(outputs)

    def _retire(self, plan: StepPlan) -> None:
        lifecycle = self._lifecycle
        for copy in plan.copies:
            lifecycle.cache.unpin(copy.source)
        lifecycle.pool.retire(plan.epoch)
        lifecycle.counters.steps += 1
        lifecycle.counters.step_finished_seconds = lifecycle.cache.now_seconds

    # --- live settings

    def change_policy(self, change: PolicyChange) -> PolicyChange:
        """Put live settings in force and return all of them; raises RequestRefused (400) where one can't be.

        The limits of a step are the caller's: they are returned as they were given.
        """
        lifecycle = self._lifecycle
        lifecycle.settings, lifecycle.pool.limit = changed_settings(lifecycle, change)
        if change.reset_prefix_cache:
            lifecycle.cut_chains()
            lifecycle.cache.reset()
        self._keep_limit()
        settings = lifecycle.settings
        return replace(
            change,
            kv_blocks=lifecycle.pool.limit,
            max_sequences=settings.max_sequences,
            max_queue=settings.max_queue,
            queue_timeout_seconds=settings.queue_timeout_seconds,
            watermark_percent=settings.watermark_percent,
            retention_ttl_seconds=settings.retention_ttl_seconds,
        )

    def _keep_limit(self) -> None:
        """Bring blocks in use under the limit: cached ones first, then the youngest sequences' but the oldest's."""
        lifecycle = self._lifecycle
        lifecycle.cache.shrink()
        if lifecycle.settings.reserving:
            return
        for sequence in tuple(reversed(lifecycle.running[1:])):
            if lifecycle.pool.num_in_use <= lifecycle.pool.limit:
                return
            if sequence.epoch is None:
                lifecycle.preempt(sequence, "budget")
                lifecycle.cache.shrink()

    # --- figures

    def snapshot(self, now_seconds: float) -> EngineSnapshot:
        """Return all gauges and counters as of now."""
        lifecycle, counters = self._lifecycle, self._lifecycle.counters
        lifecycle.cache.now_seconds = now_seconds
        blocks = lifecycle.pool.counts()
        return EngineSnapshot(
            step_finished_seconds=counters.step_finished_seconds,
            epoch=lifecycle.pool.epoch,
            blocks_total=blocks.free + blocks.cached + blocks.live,
            blocks_free=blocks.free,
            blocks_cached=blocks.cached,
            blocks_live=blocks.live,
            slots_live=blocks.slots_live,
            slots_allocated=blocks.live * lifecycle.settings.block_size,
            running=len(lifecycle.running),
            waiting=lifecycle.queue.num_requests,
            queued_tokens=lifecycle.queue.prompt_tokens,
            token_budget=counters.token_budget,
            steps=counters.steps,
            step_seconds=counters.step_seconds,
            prompt_tokens=counters.prompt_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            prefix_missed_tokens=counters.prompt_tokens - counters.prefix_hit_tokens,
            generated_tokens=counters.generated_tokens,
            computed_tokens=counters.computed_tokens,
            copies_on_write=counters.copies_on_write,
            evicted_blocks=lifecycle.cache.evicted,
            preemptions=dict(counters.preemptions),
            recomputed_tokens=dict(counters.recomputed_tokens),
            outcomes=dict(counters.outcomes),
        )

    def check(self) -> tuple[str, ...]:
        """Say in words what is wrong with the books: nothing, unless there is a bug."""
        return broken_invariants(self._lifecycle)
