"""Tokens from logits: rules one at a time, draws that depend on nothing but their counter, failures that stay alone."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from pagefleet_runtime.model_executor.draws import uniform
from pagefleet_runtime.model_executor.sampling import Sample, sample_tokens
from pagefleet_runtime.plan import SampledToken, SampleSpec
from pagefleet_runtime.request import SamplingParams, SequenceKey

VOCABULARY = 600


def some_logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def spec(
    name: str = "r", choice: int = 0, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **params: Any
) -> SampleSpec:
    return SampleSpec(
        SequenceKey(name, choice), SamplingParams(**{"max_tokens": 9, "temperature": 0.0} | params), prompt, output
    )


def one(logits: torch.Tensor, asked: SampleSpec, allowed: np.ndarray[Any, Any] | None = None) -> SampledToken:
    outcome = sample_tokens(logits, [Sample(asked, 0)], {} if allowed is None else {asked.key: allowed})
    assert not outcome.failures
    return outcome.sampled[0]


def drawn(logits: torch.Tensor, count: int, **params: Any) -> Counter[int]:
    """Count the tokens of `count` draws, each of another seed."""
    samples = [Sample(spec(str(seed), seed=seed, **{"temperature": 1.0} | params), 0) for seed in range(count)]
    return Counter(token.token_id for token in sample_tokens(logits, samples, {}).sampled)


def probabilities(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    return torch.softmax(logits[0].double() / temperature, dim=-1)


def test_greedy_takes_the_best_token_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = some_logits().to(dtype)
        assert one(logits, spec()).token_id == int(logits.float().argmax())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_probabilities(temperature: float) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -40.0]])

    counts = drawn(logits, 4000, temperature=temperature)

    expected = probabilities(logits, temperature)
    for token in range(5):
        share = float(expected[token])
        assert abs(counts[token] / 4000 - share) < 4 * math.sqrt(share / 4000) + 1e-9


def test_a_draw_depends_on_seed_choice_and_position_only() -> None:
    logits = some_logits(5)
    asked = spec("wanted", choice=2, output=(1, 2, 3), seed=11, temperature=1.3)
    alone = one(logits[3:4], asked).token_id

    others = [Sample(spec(str(i), seed=i, temperature=0.9, top_p=0.5), i) for i in range(5)]
    outcome = sample_tokens(logits, [*others, Sample(asked, 3)], {})

    assert outcome.sampled[-1].token_id == alone
    assert outcome.sampled[-1].key == asked.key


def test_uniforms_differ_by_seed_choice_and_position_and_fill_the_interval() -> None:
    numbers = {uniform(seed, choice, place) for seed in range(20) for choice in range(5) for place in range(20)}

    assert len(numbers) == 2000
    assert 0 <= min(numbers) < 0.01 and 0.99 < max(numbers) < 1
    assert uniform(2**64 + 3, 0, 0) == uniform(3, 0, 0)


def test_top_k_leaves_the_k_best() -> None:
    logits = some_logits()

    counts = drawn(logits, 500, top_k=3)

    assert set(counts) == set(logits[0].topk(3).indices.tolist())


@pytest.mark.parametrize("top_k", [300, 599, 600, 10_000])
def test_a_large_top_k_is_honoured(top_k: int) -> None:
    logits = some_logits() * 0.1

    allowed = set(logits[0].topk(min(top_k, VOCABULARY)).indices.tolist())

    assert set(drawn(logits, 2000, top_k=top_k)) <= allowed


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9])
def test_top_p_leaves_the_smallest_set_that_reaches_it(top_p: float) -> None:
    logits = some_logits()
    best = probabilities(logits).sort(descending=True)
    needed = int((best.values.cumsum(0) < top_p).sum()) + 1

    counts = drawn(logits, 1500, top_p=top_p)

    assert set(counts) <= set(best.indices[:needed].tolist())
    assert len(counts) > needed / 2


def test_top_p_of_flat_logits_looks_beyond_the_head() -> None:
    logits = some_logits() * 0.01
    best = probabilities(logits).sort(descending=True)
    needed = int((best.values.cumsum(0) < 0.8).sum()) + 1

    counts = drawn(logits, 3000, top_p=0.8)

    assert needed > 256
    assert set(counts) <= set(best.indices[:needed].tolist())
    assert set(counts) - set(best.indices[:256].tolist())


def test_top_p_counts_within_top_k() -> None:
    logits = torch.tensor([[3.0, 2.9, 2.8, 2.7, 2.6]])

    assert set(drawn(logits, 500, top_k=2, top_p=0.6)) == {0, 1}
    assert set(drawn(logits, 500, top_k=2, top_p=0.4)) == {0}


def test_min_p_leaves_what_is_probable_enough_against_the_best() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.26, 0.2, 0.04]]))

    assert set(drawn(logits, 500, min_p=0.5)) == {0, 1}
    assert set(drawn(logits, 500, min_p=1.0)) == {0}


def test_the_lowest_temperature_is_greedy() -> None:
    logits = some_logits()

    assert set(drawn(logits, 50, temperature=1e-6)) == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-46, 1e-300, 5e-324])
def test_a_temperature_too_small_for_float32_is_greedy_too(temperature: float) -> None:
    logits = some_logits(seed=3)

    for truncation in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}):
        assert set(drawn(logits.clone(), 20, temperature=temperature, **truncation)) == {int(logits.argmax())}


@pytest.mark.parametrize("penalty", [1e-30, 1e-46, 1e-300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tiny_repetition_penalty_repeats_what_was_there(penalty: float, temperature: float) -> None:
    logits = torch.tensor([[9.0, 2.0, 1.0, -1.0]])

    asked = spec(prompt=(1, 3), repetition_penalty=penalty, temperature=temperature, top_logprobs=1)

    assert one(logits, asked).token_id == 1


def test_repetition_penalty_weakens_what_was_in_prompt_or_output() -> None:
    logits = torch.tensor([[2.0, 1.9, 1.8, -1.0]])

    assert one(logits, spec(prompt=(0, 0), output=(1,), repetition_penalty=1.5)).token_id == 2
    negative = one(torch.tensor([[-1.0, -1.2]]), spec(prompt=(0,), repetition_penalty=1.5))
    assert negative.token_id == 1


def test_presence_counts_once_and_frequency_each_time_and_the_prompt_not_at_all() -> None:
    logits = torch.tensor([[2.0, 1.6, 1.2]])

    assert one(logits, spec(prompt=(0, 0, 0), presence_penalty=2.0)).token_id == 0
    assert one(logits, spec(output=(0, 0, 0), presence_penalty=0.3)).token_id == 0
    assert one(logits, spec(output=(0, 0, 0), frequency_penalty=0.3)).token_id == 1


def test_logit_bias_moves_single_tokens() -> None:
    logits = some_logits()

    assert one(logits, spec(logit_bias=((5, 100.0),))).token_id == 5
    assert one(logits, spec(logit_bias=((int(logits.argmax()), -100.0),))).token_id == int(logits[0].topk(2).indices[1])


def test_a_grammar_leaves_only_what_it_allows() -> None:
    logits = some_logits()
    allowed = np.zeros(VOCABULARY, dtype=np.bool_)
    allowed[[7, 9]] = True

    assert one(logits, spec(), allowed).token_id == max((7, 9), key=lambda token: float(logits[0, token]))
    outcome = sample_tokens(logits, [Sample(spec(temperature=5.0), 0)], {SequenceKey("r", 0): allowed})
    assert outcome.sampled[0].token_id in (7, 9)


def test_logprobs_are_after_penalties_and_before_temperature_and_truncation() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    asked = spec(temperature=0.01, top_k=1, top_logprobs=2, logit_bias=((1, 3.0),), seed=4)

    token = one(logits, asked)

    expected = torch.log_softmax(torch.tensor([2.0, 4.0, 0.0, -1.0]), dim=0)
    assert token.token_id == 1 and token.logprob is not None
    assert token.logprob.logprob == pytest.approx(float(expected[1]))
    assert [i for i, _ in token.logprob.top] == [1, 0]
    assert token.logprob.top[1][1] == pytest.approx(float(expected[0]))


def test_no_top_logprobs_still_tells_the_chosen_tokens() -> None:
    token = one(some_logits(), spec(top_logprobs=0))

    assert token.logprob is not None and token.logprob.top == ()


def test_what_cannot_be_is_reported_as_a_number() -> None:
    allowed = np.array([True, False, False, False])

    token = one(torch.zeros(1, 4), spec(top_logprobs=2), allowed)

    assert token.logprob is not None and token.logprob.top[1][1] == -9999.0


def test_a_row_of_nan_fails_alone() -> None:
    logits = some_logits(3)
    logits[1, 17] = float("nan")
    samples = [Sample(spec(name), row) for name, row in (("a", 0), ("b", 1), ("c", 2), ("d", 1))]

    outcome = sample_tokens(logits, samples, {})

    assert [token.key.request_id for token in outcome.sampled] == ["a", "c"]
    assert {(f.key.request_id, "NaN" in f.message) for f in outcome.failures} == {("b", True), ("d", True)}


@pytest.mark.parametrize(
    "broken",
    [spec("bad", logit_bias=((VOCABULARY, 1.0),)), spec("bad", output=(VOCABULARY + 1,), frequency_penalty=1.0)],
)
def test_a_request_whose_own_sampling_fails_fails_alone(broken: SampleSpec) -> None:
    outcome = sample_tokens(some_logits(), [Sample(broken, 0), Sample(spec("good", temperature=1.0), 0)], {})

    assert [token.key.request_id for token in outcome.sampled] == ["good"]
    assert [failure.key.request_id for failure in outcome.failures] == ["bad"]


def test_a_mask_that_allows_nothing_fails_its_request() -> None:
    asked = spec(temperature=1.0)

    outcome = sample_tokens(some_logits(), [Sample(asked, 0)], {asked.key: np.zeros(VOCABULARY, dtype=np.bool_)})

    assert "no token" in outcome.failures[0].message


def test_several_choices_draw_from_one_row() -> None:
    samples = [Sample(spec(choice=choice, temperature=2.0, seed=3), 0) for choice in range(8)]

    outcome = sample_tokens(some_logits(), samples, {})

    assert [token.key.choice_index for token in outcome.sampled] == list(range(8))
    assert len({token.token_id for token in outcome.sampled}) > 3
