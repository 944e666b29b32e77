"""Values that the scheduler's tests are about, with defaults for what a test isn't about."""

from dataclasses import replace
from typing import Any

from pagefleet_runtime.request import GenerationRequest, SamplingParams
from pagefleet_runtime.scheduler import Scheduler
from pagefleet_runtime.scheduler_settings import SchedulerSettings, StepLimit
from pagefleet_runtime.step_cost import StepCost

HASH_KEY = b"a key of the tests"
EOS = 1
# A millisecond a token whatever its context: seconds and tokens are the same limit.
FLAT_COST = StepCost(0.0, 0.001, 0.0, 0.001, 0.0)


def some_settings(**changes: Any) -> SchedulerSettings:
    settings = SchedulerSettings(
        num_blocks=64,
        block_size=4,
        max_length_tokens=256,
        max_sequences=16,
        max_queue=100,
        queue_timeout_seconds=60,
        policy="FCFS",
        prefix_sharing_mode="Service",
        retention_ttl_seconds=None,
        swap_mode="Recompute",
        watermark_percent=1,
        eos_token_ids=(EOS,),
    )
    return replace(settings, **changes)


def some_scheduler(**changes: Any) -> Scheduler:
    return Scheduler(some_settings(**changes), HASH_KEY)


def some_request(
    request_id: str, prompt: range | tuple[int, ...], max_tokens: int = 4, **changes: Any
) -> GenerationRequest:
    """A greedy request. Sampling parameters and the request's own fields are given by their names."""
    fields = {name: changes.pop(name) for name in ("num_choices", "tenant", "priority") if name in changes}
    params = SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **changes})
    return GenerationRequest(request_id, tuple(prompt), params, **fields)


def step_limit(max_tokens: int | None = None, seconds: float = 10.0, cost: StepCost = FLAT_COST) -> StepLimit:
    return StepLimit(max_tokens, seconds, cost)
