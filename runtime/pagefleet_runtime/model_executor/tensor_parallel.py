"""A model that several ranks compute together: each runs every plan on its share of the heads, in step.

Sampling is rank 0's alone. No sampled token has to be told: the next plan's rows carry it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import torch

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.executor import ModelExecutor
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import PackedStep
from pagefleet_runtime.model_executor.paged_model import ForwardResult, PagedModel
from pagefleet_runtime.plan import Row, SampleSpec, StepPlan, StepResult
from pagefleet_runtime.request import GenerationRequest, SamplingParams

_GREEDY = SamplingParams(max_tokens=1, temperature=0)

Fail = Callable[[str], NoReturn]


class OtherRanks(Protocol):
    def running(self, plan: StepPlan) -> AbstractContextManager[None]:
        """Have the other ranks run the plan while the caller does; the context ends when the caller has run it."""
        ...

    def fail(self, message: str) -> NoReturn:
        """End all ranks."""
        ...


class RankModel(PagedModel):
    """One rank's share of a model. What fails here leaves the others waiting in the middle of a step, so nothing is run
    again: all ranks end."""

    def __init__(self, model: Any, fail: Fail) -> None:
        super().__init__(model)
        self._fail = fail

    def forward(self, packed: PackedStep, cache: KVCache, keep: torch.Tensor) -> ForwardResult:
        try:
            return super().forward(packed, cache, keep)
        except ModelRefused:
            raise  # what every rank finds
        except Exception as error:
            self._fail(f"the forward pass failed: {error}")

    def head(self, result: ForwardResult, tokens: torch.Tensor) -> torch.Tensor:
        try:
            return super().head(result, tokens)
        except Exception as error:
            self._fail(f"the model's head failed: {error}")


class TensorParallelExecutor:
    """Rank 0's executor, in the place of the one that it holds."""

    def __init__(self, executor: ModelExecutor, others: OtherRanks) -> None:
        self._executor = executor
        self._others = others

    @property
    def cache(self) -> KVCache:
        return self._executor.cache

    def prepare(self, request: GenerationRequest) -> None:
        self._executor.prepare(request)

    def forget(self, request_id: str) -> None:
        self._executor.forget(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        with self._others.running(shared_plan(plan)):
            try:
                return self._executor.execute(plan)
            except Exception as error:
                self._others.fail(f"step {plan.epoch} failed: {error}")


def shared_plan(plan: StepPlan) -> StepPlan:
    """Return what a plan asks of every rank: the same copies, rows and logits. What a draw depends on stays here."""
    return replace(plan, rows=tuple(map(_shared_row, plan.rows)))


def _shared_row(row: Row) -> Row:
    # A spec says that the row's logits are computed; several specs share them.
    return replace(row, samples=tuple(SampleSpec(spec.key, _GREEDY, (), ()) for spec in row.samples[:1]))
