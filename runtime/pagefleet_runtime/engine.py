"""The engine: one thread that takes what has arrived, plans a step, executes it, commits it, and says what came of it.

It is the only one that touches the scheduler. Messages are applied between steps only.
"""

import logging
import os
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.executor import Executor
from pagefleet_runtime.plan import StepPlan
from pagefleet_runtime.preparation import Preparation, Prepared
from pagefleet_runtime.protocol import (
    Abort,
    Accepted,
    ChangePolicy,
    EngineInfo,
    FromEngine,
    PolicyChange,
    PolicyChanged,
    Rejected,
    Shutdown,
    StepOutput,
    StopChoice,
    Submit,
    ToEngine,
    TokenOutput,
)
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.scheduler import Scheduler
from pagefleet_runtime.scheduler_settings import SchedulerSettings, StepLimit
from pagefleet_runtime.snapshot import EngineSnapshot
from pagefleet_runtime.step_cost import StepCost, load_of

Inbox = queue.SimpleQueue[ToEngine | Prepared]
Post = Callable[[FromEngine], None]

# How many steps may fail one after the other before the engine gives up: the cause is then not in one request.
_MOST_FAILURES = 3
# How long to wait for a message where work waits but no step is possible; time itself may make one possible.
_BLOCKED_SECONDS = 0.05
# How long to sleep while idle: what expires by time is looked at so often.
_IDLE_SECONDS = 10.0
_HASH_KEY_BYTES = 32

logger = logging.getLogger(__name__)


class EngineBroken(Exception):
    """Step after step fails: the process must be started anew."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What limits a step, apart from its cost."""

    step_milliseconds: int
    max_batch_tokens: int | None

    def changed(self, change: PolicyChange) -> "StepTimes":
        return StepTimes(
            change.step_milliseconds or self.step_milliseconds, change.max_batch_tokens or self.max_batch_tokens
        )

    def limit(self, cost: StepCost) -> StepLimit:
        return StepLimit(self.max_batch_tokens, self.step_milliseconds / 1000, cost)


class Model(Protocol):
    """What loading a model gives: who runs its steps, what is in force, and how long steps take."""

    @property
    def executor(self) -> Executor: ...

    @property
    def info(self) -> EngineInfo: ...

    @property
    def step_cost(self) -> StepCost: ...


def scheduler_settings(config: EngineConfig, info: EngineInfo) -> SchedulerSettings:
    """Return what the scheduler needs of the settings and of what is in force after loading."""
    cache, scheduling = config.kv_cache, config.scheduling
    return SchedulerSettings(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_length_tokens=info.max_length_tokens,
        max_sequences=scheduling.max_sequences,
        max_queue=scheduling.max_queue,
        queue_timeout_seconds=scheduling.queue_timeout_seconds,
        policy=scheduling.policy,
        prefix_sharing_mode=cache.prefix_sharing.mode,
        retention_ttl_seconds=cache.prefix_sharing.retention.ttl_seconds,
        swap_mode=cache.swap.mode,
        watermark_percent=cache.watermark_percent,
        eos_token_ids=info.eos_token_ids,
    )


class Engine:
    def __init__(self, config: EngineConfig, model: Model, inbox: Inbox, post: Post) -> None:
        # A key of this process's own: nobody can prepare prompts whose prefix keys collide.
        self._scheduler = Scheduler(scheduler_settings(config, model.info), os.urandom(_HASH_KEY_BYTES))
        self._executor = model.executor
        self._cost = model.step_cost
        self._times = StepTimes(model.info.step_milliseconds, config.scheduling.max_batch_tokens)
        self._inbox = inbox
        self._post = post
        self._preparation = Preparation(
            model.executor, config.serving.grammar_timeout_seconds, config.scheduling.max_queue, inbox.put
        )
        self._queue_times = QueueTimes()
        self._blocked = False  # work waits, but no step was possible
        self._checked = True  # nothing has changed since the books were checked
        self._failures = 0  # steps that failed one after the other
        self._outcomes: Counter[str] = Counter()  # of requests that never reached the scheduler
        self._told = EngineSnapshot()

    def run(self) -> None:
        """Run until a Shutdown comes. Raises EngineBroken where step after step fails."""
        try:
            while self._take_messages(self._wait_seconds()):
                self._turn(time.monotonic())
        finally:
            self._preparation.close()

    def _turn(self, now: float) -> None:
        self._expire(now)
        plan = self._scheduler.plan(now, self._times.limit(self._cost)) if self._scheduler.has_work() else None
        self._blocked = plan is None
        if plan is not None:
            self._queue_times.started(plan, now)
            self._tell(self._step(plan))
            self._checked = False
        else:
            self._rest(now)

    # --- messages

    def _wait_seconds(self) -> float:
        """Return how long the next turn may wait for a message."""
        deadline = self._preparation.next_deadline_seconds
        wait = _IDLE_SECONDS
        if self._scheduler.has_work():
            wait = _BLOCKED_SECONDS if self._blocked else 0.0
        return wait if deadline is None else max(0.0, min(wait, deadline - time.monotonic()))

    def _take_messages(self, wait_seconds: float) -> bool:
        """Apply all that has arrived; wait for the first. Return False where a Shutdown is among it."""
        try:
            message = self._inbox.get(timeout=wait_seconds)
            while not isinstance(message, Shutdown):
                self._apply(message)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False

    def _apply(self, message: ToEngine | Prepared) -> None:
        match message:
            case Submit():
                self._submit(message.request)
            case Prepared():
                self._take_prepared(message)
            case Abort():
                if self._preparation.give_up(message.request_id):
                    self._outcomes["cancelled"] += 1
                self._scheduler.abort(message.request_id)
            case StopChoice():
                self._scheduler.stop_choice(message.request_id, message.choice_index)
            case ChangePolicy():
                self._post(self._change_policy(message))

    def _submit(self, request: GenerationRequest) -> None:
        if request.params.grammar is None:
            self._queue(request)
        elif not self._preparation.start(request, time.monotonic()):
            self._refuse(request.request_id, self._preparation.full_refusal)

    def _take_prepared(self, prepared: Prepared) -> None:
        request = self._preparation.finish(prepared)
        if request is not None and prepared.refusal is not None:
            self._executor.forget(request.request_id)
            self._refuse(request.request_id, prepared.refusal)
        elif request is not None:
            self._queue(request)

    def _queue(self, request: GenerationRequest) -> None:
        try:
            self._scheduler.submit(request, time.monotonic())
        except RequestRefused as refused:
            self._executor.forget(request.request_id)
            self._post(Rejected(request.request_id, refused.refusal))
        else:
            self._queue_times.arrived(request)
            self._post(Accepted(request.request_id))

    def _refuse(self, request_id: str, refusal: Refusal) -> None:
        """Refuse a request that the scheduler hasn't seen."""
        self._outcomes["refused"] += 1
        self._post(Rejected(request_id, refusal))

    def _change_policy(self, message: ChangePolicy) -> PolicyChanged:
        try:
            policy = self._scheduler.change_policy(message.change)
        except RequestRefused as refused:
            return PolicyChanged(message.change_id, None, refused.refusal)
        self._times = self._times.changed(message.change)
        in_force = replace(
            policy,
            step_milliseconds=self._times.step_milliseconds,
            max_batch_tokens=self._times.max_batch_tokens,
            reset_prefix_cache=False,  # done, not in force
        )
        return PolicyChanged(message.change_id, in_force)

    def _expire(self, now: float) -> None:
        for rejected in self._scheduler.expire(now):
            self._post(rejected)
        for request_id in self._preparation.expire(now):
            self._refuse(request_id, self._preparation.timeout_refusal)

    # --- steps

    def _step(self, plan: StepPlan) -> tuple[TokenOutput, ...]:
        started = time.monotonic()
        try:
            result = self._executor.execute(plan)
        except Exception as error:
            return self._fail(plan, error)
        self._failures = 0
        self._learn(plan, result.duration_seconds or time.monotonic() - started)
        return self._scheduler.commit(plan, result, time.monotonic())

    def _learn(self, plan: StepPlan, measured_seconds: float) -> None:
        self._cost = self._cost.learned(load_of(plan), measured_seconds)

    def _fail(self, plan: StepPlan, error: Exception) -> tuple[TokenOutput, ...]:
        request_ids = sorted({row.key.request_id for row in plan.rows})
        logger.exception("step %d failed with the requests %s", plan.epoch, ", ".join(request_ids))
        self._failures += 1
        outputs = self._scheduler.fail_step(plan, "the engine failed on this request; its log has the cause")
        if self._failures >= _MOST_FAILURES:
            self._tell(outputs)
            raise EngineBroken(f"{self._failures} steps failed one after the other; the last: {error}")
        return outputs

    def _rest(self, now: float) -> None:
        """No step was possible: tell what messages have changed, and check the books where nothing is under way."""
        if self._figures(now) != self._told:
            self._tell(())
        if not self._checked and not self._scheduler.has_work():
            self._checked = True
            for fault in self._scheduler.check():
                logger.error("the idle engine's books are wrong, a bug of ours: %s", fault)

    def _tell(self, outputs: tuple[TokenOutput, ...]) -> None:
        """Post what came of a step with the figures after it, and forget what has ended."""
        self._told = self._figures(time.monotonic())
        self._post(StepOutput(self._queue_times.shown(outputs), self._told))
        for request_id in self._scheduler.take_ended_requests():
            self._executor.forget(request_id)
            self._queue_times.forget(request_id)

    def _figures(self, now: float) -> EngineSnapshot:
        snapshot = self._scheduler.snapshot(now)
        if not self._outcomes:
            return snapshot
        return replace(snapshot, outcomes=dict(self._outcomes + Counter(snapshot.outcomes)))


class QueueTimes:
    """How long each request waited for its first step; told with its first output."""

    def __init__(self) -> None:
        self._arrivals: dict[str, float] = {}  # of those that no step has run
        self._waited: dict[str, float] = {}  # of those that run and gave no output

    def arrived(self, request: GenerationRequest) -> None:
        self._arrivals[request.request_id] = request.arrival_seconds

    def started(self, plan: StepPlan, now: float) -> None:
        if not self._arrivals:
            return
        for row in plan.rows:
            arrival = self._arrivals.pop(row.key.request_id, None)
            if arrival is not None:
                self._waited[row.key.request_id] = max(0.0, now - arrival)

    def shown(self, outputs: tuple[TokenOutput, ...]) -> tuple[TokenOutput, ...]:
        if not self._waited:
            return outputs
        return tuple(
            replace(output, queue_seconds=self._waited.pop(output.request_id))
            if output.request_id in self._waited
            else output
            for output in outputs
        )

    def forget(self, request_id: str) -> None:
        self._arrivals.pop(request_id, None)
        self._waited.pop(request_id, None)
