"""The executor that runs plans on a model. It makes the copies, runs the rows in one forward, samples."""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch

from pagefleet_kernels.page_copy import page_copy
from pagefleet_runtime.model_executor.grammar_masks import GrammarMasks, GrammarStates
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import PackedStep, pack
from pagefleet_runtime.model_executor.paged_model import ForwardResult, StepModel
from pagefleet_runtime.model_executor.prompt_logprobs import prompt_logprobs
from pagefleet_runtime.model_executor.sampling import Sample, sample_tokens
from pagefleet_runtime.plan import Row, RowFailure, SampledToken, StepPlan, StepResult, TokenLogprob
from pagefleet_runtime.request import GenerationRequest, SequenceKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What some of a step's rows gave."""

    sampled: tuple[SampledToken, ...] = ()
    failures: tuple[RowFailure, ...] = ()
    prompt_logprobs: tuple[tuple[SequenceKey, tuple[TokenLogprob, ...]], ...] = ()

    def __add__(self, other: "_Outcome") -> "_Outcome":
        return _Outcome(
            self.sampled + other.sampled,
            self.failures + other.failures,
            self.prompt_logprobs + other.prompt_logprobs,
        )


class ModelExecutor:
    """Implements `Executor` on a model and its cache. `execute` is called by one thread only."""

    def __init__(self, model: StepModel, cache: KVCache, grammars: GrammarStates) -> None:
        self._model = model
        self._cache = cache
        self._grammars = grammars

    @property
    def cache(self) -> KVCache:
        return self._cache

    def prepare(self, request: GenerationRequest) -> None:
        self._grammars.prepare(request)

    def forget(self, request_id: str) -> None:
        self._grammars.forget(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        started = time.monotonic()
        masks = self._grammars.start_filling([spec for row in plan.rows for spec in row.samples])
        with torch.inference_mode():
            page_copy(
                self._cache.buffer,
                [(copy.source, copy.target) for copy in plan.copies],
                kernels=self._cache.kernels.pages,
            )
            outcome = self._run(plan.rows, masks)
        kept, refused = self._grammars.advance(outcome.sampled)
        return StepResult(
            epoch=plan.epoch,
            sampled=tuple(kept),
            failures=outcome.failures + tuple(refused),
            prompt_logprobs=outcome.prompt_logprobs,
            duration_seconds=time.monotonic() - started,
        )

    def _run(self, rows: Sequence[Row], masks: Future[GrammarMasks]) -> _Outcome:
        """Run the rows together; where that raises, one by one, so that the one that is broken fails alone. Running
        a row again writes the same keys and values to the same slots."""
        if not rows:
            return _Outcome()
        packed = pack(rows, self._cache.block_size)
        sampled = [end - 1 for row, _, end in _spans(packed) if row.samples]
        try:
            result = self._model.forward(packed, self._cache, torch.tensor(sampled, dtype=torch.long))
        except Exception as error:
            if len(rows) == 1:
                return _Outcome(failures=_failures(rows[0], f"the forward pass failed: {error}"))
            _log.warning("a step of %d rows failed and is run row by row: %s", len(rows), error)
            return reduce(add, (self._run([row], masks) for row in rows))
        return self._sample(packed, result, masks.result())

    def _sample(self, packed: PackedStep, result: ForwardResult, masks: GrammarMasks) -> _Outcome:
        outcome = self._prompt_logprobs(packed, result)
        dropped = {failure.key: failure.message for failure in outcome.failures} | dict(masks.failures)
        rows = [row for row in packed.rows if row.samples]
        samples = [Sample(spec, i) for i, row in enumerate(rows) for spec in row.samples if spec.key not in dropped]
        drawn = sample_tokens(result.logits, samples, masks.allowed)
        refused = [
            RowFailure(spec.key, masks.failures[spec.key])
            for row in rows
            for spec in row.samples
            if spec.key in masks.failures
        ]
        return outcome + _Outcome(drawn.sampled, drawn.failures + tuple(refused))

    def _prompt_logprobs(self, packed: PackedStep, result: ForwardResult) -> _Outcome:
        outcome = _Outcome()
        for row, first_token, _ in _spans(packed):
            if row.prompt_logprobs is None or not row.next_prompt_ids:
                continue
            try:
                entries = prompt_logprobs(self._model, result, row, first_token)
            except Exception as error:
                outcome += _Outcome(failures=_failures(row, f"the prompt's logprobs failed: {error}"))
            else:
                outcome += _Outcome(prompt_logprobs=((row.key, entries),))
        return outcome


def _spans(packed: PackedStep) -> Iterator[tuple[Row, int, int]]:
    for row, first_token in zip(packed.rows, packed.first_tokens, strict=True):
        yield row, first_token, first_token + len(row.token_ids)


def _failures(row: Row, message: str) -> tuple[RowFailure, ...]:
    """A failed row fails every choice that it feeds."""
    keys = dict.fromkeys((row.key, *(spec.key for spec in row.samples)))
    return tuple(RowFailure(key, message) for key in keys)
