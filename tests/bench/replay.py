"""The scheduler on its own: a workload played through it with a model that takes no time, so that what deciding costs
can be told from what computing costs."""

import time
from collections.abc import Sequence
from typing import Literal

from pagefleet_runtime.plan import SampledToken, StepPlan, StepResult
from pagefleet_runtime.request import GenerationRequest, SamplingParams
from pagefleet_runtime.scheduler import Scheduler
from pagefleet_runtime.scheduler_settings import SchedulerSettings, StepLimit
from pagefleet_runtime.step_cost import StepCost
from tests.bench.workloads import BenchRequest

# About what a CPU takes for SmolLM2, so that the steps are cut as they are in the server.
_COST = StepCost(0.01, 0.001, 0.000_005, 0.001, 0.000_000_1)


def scheduling_seconds(requests: Sequence[BenchRequest], sharing: Literal["Disabled", "Service"]) -> float:
    """Return the seconds that planning and committing take for the whole workload."""
    settings = SchedulerSettings(
        num_blocks=4096,
        block_size=16,
        max_length_tokens=8192,
        max_sequences=256,
        max_queue=512,
        queue_timeout_seconds=60,
        policy="FCFS",
        prefix_sharing_mode=sharing,
        retention_ttl_seconds=None,
        swap_mode="Recompute",
        watermark_percent=1,
    )
    scheduler = Scheduler(settings, bytes(32))
    begin = time.perf_counter()
    for index, request in enumerate(requests):
        params = SamplingParams(max_tokens=request.num_output_tokens, temperature=0.0, ignore_eos=True)
        scheduler.submit(GenerationRequest(str(index), request.prompt_ids, params), 0.0)
    limit = StepLimit(None, 0.1, _COST)
    now = 0.0
    while (plan := scheduler.plan(now, limit)) is not None:
        now += 0.1
        scheduler.commit(plan, _instant(plan), now)
    seconds = time.perf_counter() - begin
    if scheduler.has_work():
        raise RuntimeError("the replay ended with work left, so it measures nothing")
    return seconds


def _instant(plan: StepPlan) -> StepResult:
    samples = (sample for row in plan.rows for sample in row.samples)
    return StepResult(plan.epoch, tuple(SampledToken(sample.key, 1) for sample in samples))
