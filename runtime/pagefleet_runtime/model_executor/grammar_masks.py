"""Where each choice stands in its grammar, and its masks, which are filled while the forward pass runs."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagefleet_runtime.grammar import GrammarCompiler, Matcher
from pagefleet_runtime.model_executor.mask_filling import MaskFiller
from pagefleet_runtime.plan import RowFailure, SampledToken, SampleSpec
from pagefleet_runtime.request import GenerationRequest, SequenceKey


@dataclass
class _Place:
    matcher: Matcher
    num_consumed: int


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Of one step: which tokens each choice may take, and the choices whose grammar can't go on."""

    allowed: Mapping[SequenceKey, NDArray[np.bool_]]
    failures: Mapping[SequenceKey, str]


class GrammarStates:
    """Owns the matchers: one per request at the grammar's beginning, and one per choice that has sampled."""

    def __init__(self, compiler: Callable[[], GrammarCompiler], vocab_size: int) -> None:
        """`compiler` is asked when the first grammar comes."""
        self._compiler = compiler
        self._masks = MaskFiller(vocab_size)
        self._beginnings: dict[str, Matcher] = {}
        self._places: dict[SequenceKey, _Place] = {}
        self._filler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-masks")

    def prepare(self, request: GenerationRequest) -> None:
        """Compile the request's grammar, if it has one. Raises RequestRefused."""
        if request.params.grammar is not None:
            self._beginnings[request.request_id] = self._compiler().compile(request.params.grammar)

    def forget(self, request_id: str) -> None:
        self._beginnings.pop(request_id, None)
        for key in [key for key in self._places if key.request_id == request_id]:
            del self._places[key]

    def start_filling(self, specs: Sequence[SampleSpec]) -> "Future[GrammarMasks]":
        """Fill the masks of the specs that have a grammar, beside the caller."""
        constrained = [spec for spec in specs if spec.params.grammar is not None]
        if not constrained:
            nothing: Future[GrammarMasks] = Future()
            nothing.set_result(GrammarMasks({}, {}))
            return nothing
        return self._filler.submit(self._fill, constrained)

    def advance(self, sampled: Sequence[SampledToken]) -> tuple[list[SampledToken], list[RowFailure]]:
        """Consume the sampled tokens. Returns them with `grammar_finished` set, and those that the grammar refused."""
        kept: list[SampledToken] = []
        failures: list[RowFailure] = []
        for token in sampled:
            place = self._places.get(token.key)
            if place is None:
                kept.append(token)
                continue
            try:
                place.matcher.consume(token.token_id)
            except Exception as error:
                failures.append(RowFailure(token.key, f"the request's grammar failed: {error}"))
                continue
            place.num_consumed += 1
            kept.append(SampledToken(token.key, token.token_id, token.logprob, place.matcher.is_finished))
        return kept, failures

    def _fill(self, specs: Sequence[SampleSpec]) -> GrammarMasks:
        failures: dict[SequenceKey, str] = {}
        ready: dict[SequenceKey, Matcher] = {}
        for spec in specs:
            try:
                ready[spec.key] = self._place(spec).matcher
            except Exception as error:
                failures[spec.key] = f"the request's grammar failed: {error}"
        masks = self._masks.fill(list(ready.values()), self._compiler().tokenizer_size) if ready else ()
        for key, matcher in ready.items():
            if matcher.error is not None:
                failures[key] = f"the request's grammar failed: {matcher.error}"
        allowed = {key: mask for key, mask in zip(ready, masks, strict=True) if key not in failures}
        return GrammarMasks(allowed, failures)

    def _place(self, spec: SampleSpec) -> _Place:
        """Return the choice's place after its output, made anew where the choice hasn't been here before."""
        place = self._places.get(spec.key)
        if place is None or place.num_consumed != len(spec.output_ids):
            matcher = self._beginnings[spec.key.request_id].fork()
            for token_id in spec.output_ids:
                matcher.consume(token_id)
            place = self._places[spec.key] = _Place(matcher, len(spec.output_ids))
        return place
