"""The executor that runs plans without a model: time passes as a cost model says, and made-up text comes out."""

import time
from collections.abc import Callable
from typing import Protocol

from pagefleet_runtime.plan import RowFailure, SampledToken, SampleSpec, StepPlan, StepResult, TokenLogprob
from pagefleet_runtime.request import GenerationRequest, SequenceKey
from pagefleet_runtime.simulation.grammar_walk import GrammarWalks
from pagefleet_runtime.simulation.made_up_text import answer_length, made_up_byte, other_bytes, text_seed
from pagefleet_runtime.step_cost import StepLoad, load_of
from pagefleet_runtime.text.byte_tokenizer import TURN_END

# Waits so many seconds, or until the engine is told to end; then it returns True.
Pause = Callable[[float], bool]

_CHOSEN_LOGPROB, _OTHER_LOGPROB = -0.25, -4.0
# From here on a bias decides, as OpenAI describes its ends: 100 means this token only, -100 never.
_DECISIVE_BIAS = 50.0


class StepSeconds(Protocol):
    """How long a step takes."""

    def seconds(self, load: StepLoad) -> float: ...


class SimulatedExecutor:
    """Implements `Executor`. Temperature 0 is greedy; other distributions than the text's own don't exist here."""

    def __init__(self, cost: StepSeconds, seed: int, pause: Pause) -> None:
        self._cost = cost
        self._seed = seed
        self._pause = pause
        self._walks = GrammarWalks()
        self._seeds: dict[SequenceKey, bytes] = {}

    def prepare(self, request: GenerationRequest) -> None:
        self._walks.prepare(request)

    def forget(self, request_id: str) -> None:
        self._walks.forget(request_id)
        for key in [key for key in self._seeds if key.request_id == request_id]:
            del self._seeds[key]

    def execute(self, plan: StepPlan) -> StepResult:
        started = time.monotonic()
        sampled: list[SampledToken] = []
        failures: list[RowFailure] = []
        for spec in (spec for row in plan.rows for spec in row.samples):
            try:
                sampled.append(self._sample(spec))
            except Exception as error:
                failures.append(RowFailure(spec.key, f"the request's own sampling failed: {error}"))
        prompt_logprobs = tuple(
            (row.key, tuple(_logprob(token, row.prompt_logprobs, b"", place) for place, token in enumerate(following)))
            for row in plan.rows
            if row.prompt_logprobs is not None and (following := row.next_prompt_ids)
        )
        ends = started + self._cost.seconds(load_of(plan))
        self._pause(max(0.0, ends - time.monotonic()))
        return StepResult(
            plan.epoch, tuple(sampled), tuple(failures), prompt_logprobs, duration_seconds=time.monotonic() - started
        )

    def _sample(self, spec: SampleSpec) -> SampledToken:
        seed = self._seeds.get(spec.key)
        if seed is None:
            seed = self._seeds[spec.key] = text_seed(spec, self._seed)
        position = len(spec.output_ids)
        finished = False
        if spec.params.grammar is not None:
            token_id, finished = self._walks.next_token(spec, made_up_byte(seed, position))
        else:
            token_id = _biased(spec, seed, position, _next_token(spec, seed, position))
        top = spec.params.top_logprobs
        logprob = None if top is None else _logprob(token_id, top, seed, position)
        return SampledToken(spec.key, token_id, logprob, finished)


def _next_token(spec: SampleSpec, seed: bytes, position: int) -> int:
    ends = position >= answer_length(seed) and not spec.params.ignore_eos
    return TURN_END.token_id if ends else made_up_byte(seed, position)


def _biased(spec: SampleSpec, seed: bytes, position: int, token_id: int) -> int:
    if not spec.params.logit_bias:
        return token_id
    bias = dict(spec.params.logit_bias)
    favourite = max(bias, key=lambda one: bias[one])
    if bias[favourite] >= _DECISIVE_BIAS:
        return favourite
    candidates = (token_id, *other_bytes(seed, position, 94))
    return next((one for one in candidates if bias.get(one, 0.0) > -_DECISIVE_BIAS), token_id)


def _logprob(token_id: int, num_top: int, seed: bytes, position: int) -> TokenLogprob:
    others = [other for other in other_bytes(seed, position, num_top) if other != token_id]
    top = ((token_id, _CHOSEN_LOGPROB), *((other, _OTHER_LOGPROB - rank) for rank, other in enumerate(others)))
    return TokenLogprob(token_id, _CHOSEN_LOGPROB, top[:num_top])
