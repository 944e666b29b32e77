"""From logits to tokens: each sample of a step gets its token, or fails alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagefleet_runtime.model_executor.draws import draw_tokens, uniform
from pagefleet_runtime.model_executor.logits_processing import changes_logits, process_logits, token_logprob
from pagefleet_runtime.plan import RowFailure, SampledToken, SampleSpec
from pagefleet_runtime.request import SequenceKey


@dataclass(frozen=True, slots=True)
class Sample:
    """A spec and the row of logits that it draws from; several may share a row."""

    spec: SampleSpec
    row_index: int


@dataclass(frozen=True, slots=True)
class SamplingOutcome:
    sampled: tuple[SampledToken, ...]
    failures: tuple[RowFailure, ...]


def sample_tokens(
    logits: torch.Tensor,  # [S, V]
    samples: Sequence[Sample],
    allowed: Mapping[SequenceKey, NDArray[np.bool_]],
) -> SamplingOutcome:
    """Choose a token for each sample. `allowed` holds the grammar's mask of those that have one."""
    if not samples:
        return SamplingOutcome((), ())
    best, best_ids = logits.max(dim=-1)
    is_broken = best.isnan().tolist()
    greedy_ids: list[int] = best_ids.tolist()
    failures: list[RowFailure] = []
    tokens: dict[SequenceKey, SampledToken] = {}
    worked: list[Sample] = []
    for sample in samples:
        key = sample.spec.key
        if is_broken[sample.row_index]:
            failures.append(RowFailure(key, "the model gave logits that are not numbers (NaN) for this request"))
        elif _is_plain(sample.spec) and key not in allowed:
            tokens[key] = SampledToken(key, greedy_ids[sample.row_index])
        else:
            worked.append(sample)
    if worked:
        outcome = _sample_processed(logits, worked, allowed)
        failures += outcome.failures
        tokens.update({token.key: token for token in outcome.sampled})
    ordered = (tokens[sample.spec.key] for sample in samples if sample.spec.key in tokens)
    return SamplingOutcome(tuple(ordered), tuple(failures))


def _is_plain(spec: SampleSpec) -> bool:
    return spec.params.temperature == 0 and spec.params.top_logprobs is None and not changes_logits(spec.params)


def _sample_processed(
    logits: torch.Tensor, samples: Sequence[Sample], allowed: Mapping[SequenceKey, NDArray[np.bool_]]
) -> SamplingOutcome:
    # [K, V], a copy. Penalties and masks are made by the CPU, so rows that need them are worked on there.
    scores = logits[[sample.row_index for sample in samples]].float().cpu()
    failures: list[RowFailure] = []
    good: list[int] = []
    for index, sample in enumerate(samples):
        try:
            process_logits(scores[index], sample.spec, allowed.get(sample.spec.key))
            if math.isinf(float(scores[index].max())):
                raise ValueError("penalties, bias and grammar leave no token that could be chosen")
        except Exception as error:
            failures.append(RowFailure(sample.spec.key, f"the request's own sampling failed: {error}"))
        else:
            good.append(index)
    chosen = _choose(scores, samples, good)
    sampled = [_with_logprob(scores[index], samples[index].spec, token_id) for index, token_id in chosen.items()]
    return SamplingOutcome(tuple(sampled), tuple(failures))


def _choose(scores: torch.Tensor, samples: Sequence[Sample], good: Sequence[int]) -> dict[int, int]:
    specs = {index: samples[index].spec for index in good}
    chosen = {i: int(scores[i].argmax()) for i, spec in specs.items() if spec.params.temperature == 0}
    random = [i for i in good if i not in chosen]
    if random:
        uniforms = [uniform(s.params.seed, s.key.choice_index, len(s.output_ids)) for s in map(specs.get, random) if s]
        drawn = draw_tokens(scores[random], [specs[i].params for i in random], uniforms)
        chosen.update(zip(random, drawn, strict=True))
    return chosen


def _with_logprob(scores: torch.Tensor, spec: SampleSpec, token_id: int) -> SampledToken:
    if spec.params.top_logprobs is None:
        return SampledToken(spec.key, token_id)
    logprobs = torch.log_softmax(scores, dim=-1)
    return SampledToken(spec.key, token_id, token_logprob(logprobs, token_id, spec.params.top_logprobs))
