"""A few steps on the fresh cache: first-use costs are paid before a request waits for them, and speed is measured."""

import time
from collections.abc import Iterator
from typing import Protocol

import torch

from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.plan import Row, SampleSpec, StepPlan, StepResult
from pagefleet_runtime.request import SamplingParams, SequenceKey
from pagefleet_runtime.step_cost import StepLoad, load_of

# (rows, tokens before, tokens of each row)
_STEPS = ((1, 64, 1), (1, 0, 64), (16, 1000, 1), (1, 1000, 256), (1, 0, 256), (16, 64, 1), (1, 1000, 64), (1, 1000, 1))
# On a busy or slow machine fewer steps have to do: the scheduler corrects the estimate by what it measures.
_MOST_SECONDS = 10.0
_SLOW_SECONDS = 0.5


class MeasuredExecutor(Protocol):
    @property
    def cache(self) -> KVCache: ...

    def execute(self, plan: StepPlan) -> StepResult: ...


def clear_for_steps(cache: KVCache, max_length_tokens: int) -> None:
    """Make the blocks that the steps read hold numbers: what was never written may read as one that makes arithmetic
    slow, or as none."""
    with torch.inference_mode():
        used = min(_longest(cache, max_length_tokens), max(context + tokens for _, context, tokens in _STEPS))
        cache.buffer[: -(-used // cache.block_size)].zero_()


def measure_steps(executor: MeasuredExecutor, max_length_tokens: int) -> list[tuple[StepLoad, float]]:
    """Run the steps and return what each held and took, in seconds. The cache must hold nothing that is needed."""
    cache = executor.cache
    started = time.perf_counter()
    samples: list[tuple[StepLoad, float]] = []
    for plan in _plans(_longest(cache, max_length_tokens), cache.block_size):
        samples.append((load_of(plan), _least_time(executor, plan)))
        if time.perf_counter() - started > _MOST_SECONDS and len(samples) > 1:
            break
    return samples


def _longest(cache: KVCache, max_length_tokens: int) -> int:
    return min(max_length_tokens, cache.num_blocks * cache.block_size)


def _least_time(executor: MeasuredExecutor, plan: StepPlan) -> float:
    """The first run of a step pays what no later one does, so it counts only where a second would take long."""
    first = _timed(executor, plan)
    return first if first > _SLOW_SECONDS else min(_timed(executor, plan) for _ in range(2))


def _timed(executor: MeasuredExecutor, plan: StepPlan) -> float:
    started = time.perf_counter()
    executor.execute(plan)
    return time.perf_counter() - started


def _plans(longest: int, block_size: int) -> Iterator[StepPlan]:
    """Yield decodes and chunks behind short and long contexts, as far as the longest request allows; those that tell
    most come first."""
    seen: set[tuple[int, int, int]] = set()
    for num_rows, context, num_tokens in _STEPS:
        behind = max(0, min(context, longest - num_tokens))
        step = (num_rows, behind, min(num_tokens, longest - behind))
        if step not in seen:
            seen.add(step)
            yield _plan(*step, block_size)


def _plan(num_rows: int, context: int, num_tokens: int, block_size: int) -> StepPlan:
    # All rows use the same blocks: it changes no cost, and small pools suffice.
    table = tuple(range(-(-(context + num_tokens) // block_size)))
    params = SamplingParams(max_tokens=1, temperature=0)
    keys = [SequenceKey("warmup", index) for index in range(num_rows)]
    rows = (Row(key, (0,) * num_tokens, context, table, (SampleSpec(key, params, (), ()),)) for key in keys)
    return StepPlan(epoch=0, copies=(), rows=tuple(rows))
