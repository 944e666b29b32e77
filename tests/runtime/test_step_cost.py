"""The cost model: what it predicts, how it is fitted, how it follows what is measured."""

import math
import random

import pytest

from pagefleet_runtime.plan import Row, StepPlan
from pagefleet_runtime.request import SequenceKey
from pagefleet_runtime.step_cost import StepCost, StepLoad, chunk_pairs, fit_step_cost, load_of

TRUE = StepCost(0.004, 0.0003, 2e-7, 0.0001, 1e-8)


def some_load(draw: random.Random) -> StepLoad:
    tokens, context = draw.randrange(512), draw.randrange(2000)
    rows = draw.randrange(33)
    return StepLoad(rows, rows * draw.randrange(1, 1500), tokens, chunk_pairs(context, tokens))


def test_pairs_of_a_chunk_are_those_of_its_tokens_one_by_one() -> None:
    assert chunk_pairs(10, 3) == 11 + 12 + 13


def test_a_plan_is_loaded_by_its_rows() -> None:
    key = SequenceKey("r", 0)
    plan = StepPlan(1, (), (Row(key, (5,), 7, (0,)), Row(key, (1, 2, 3), 10, (1,))))
    assert load_of(plan) == StepLoad(1, 8, 3, 36)


def test_the_rows_of_a_step_add_up_to_its_seconds() -> None:
    seconds = TRUE.base_seconds + TRUE.row_seconds(7, 1) + TRUE.row_seconds(10, 3)
    assert math.isclose(seconds, TRUE.seconds(StepLoad(1, 8, 3, 36)))


@pytest.mark.parametrize("context", [0, 100, 4000])
@pytest.mark.parametrize("seconds", [0.0001, 0.01, 0.3])
@pytest.mark.parametrize("cost", [TRUE, StepCost(0, 0, 0, 0.0001, 0), StepCost(0, 0, 0, 0, 1e-7)])
def test_prefill_tokens_within_a_time_are_the_most_that_fit(cost: StepCost, seconds: float, context: int) -> None:
    tokens = cost.prefill_tokens_within(seconds, context, 100_000)

    def needed(count: int) -> float:
        pairs = chunk_pairs(context, count)
        return cost.prefill_token_seconds * count + cost.prefill_pair_seconds * pairs

    assert needed(tokens) <= seconds * (1 + 1e-9)
    assert needed(tokens + 1) > seconds * (1 - 1e-9)


def test_prefill_tokens_stop_at_the_most_that_there_are_and_at_no_time() -> None:
    assert TRUE.prefill_tokens_within(10.0, 0, 5) == 5
    assert StepCost(0, 0, 0, 0, 0).prefill_tokens_within(0.1, 0, 7) == 7
    assert TRUE.prefill_tokens_within(0.0, 0, 5) == 0
    assert TRUE.prefill_tokens_within(-1.0, 0, 5) == 0


def test_fitting_exact_samples_gives_the_model_back() -> None:
    draw = random.Random(1)
    samples = [(load, TRUE.seconds(load)) for load in (some_load(draw) for _ in range(30))]
    fitted = fit_step_cost(samples)
    for load, seconds in samples:
        assert math.isclose(fitted.seconds(load), seconds, rel_tol=1e-6)


def test_fitting_noisy_or_few_samples_gives_no_negative_coefficient() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        loads = [some_load(draw) for _ in range(draw.randrange(1, 8))]
        fitted = fit_step_cost([(load, TRUE.seconds(load) * draw.uniform(0.5, 2.0)) for load in loads])
        assert min(fitted.base_seconds, fitted.decode_row_seconds, fitted.decode_context_seconds) >= 0
        assert min(fitted.prefill_token_seconds, fitted.prefill_pair_seconds) >= 0
        for load in loads:
            assert TRUE.seconds(load) / 4 < fitted.seconds(load) < TRUE.seconds(load) * 4


def test_fitting_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        fit_step_cost([])


def followed(cost: StepCost, true: StepCost, loads: list[StepLoad]) -> StepCost:
    for load in loads:
        cost = cost.learned(load, true.seconds(load))
    return cost


def test_it_learns_that_steps_got_dear_and_tokens_did_not() -> None:
    slow = StepCost(0.3, 0.0003, 2e-7, 0.0001, 1e-8)  # a busy neighbour: each launch waits
    draw = random.Random(3)
    loads = [StepLoad(8, 4000, tokens, chunk_pairs(500, tokens)) for tokens in draw.choices(range(16, 600), k=150)]
    cost = followed(TRUE, slow, loads)
    assert math.isclose(cost.seconds(StepLoad(8, 4000)), slow.seconds(StepLoad(8, 4000)), rel_tol=0.1)
    assert cost.correction.prefill < 1.5


def test_it_learns_that_tokens_got_dear_and_steps_did_not() -> None:
    slow = StepCost(0.004, 0.0003, 2e-7, 0.0005, 5e-8)
    draw = random.Random(4)
    loads = [StepLoad(8, 4000, tokens, chunk_pairs(500, tokens)) for tokens in draw.choices(range(0, 600), k=150)]
    cost = followed(TRUE, slow, loads)
    assert math.isclose(cost.correction.prefill, 5.0, rel_tol=0.1)
    assert math.isclose(cost.correction.fixed, 1.0, rel_tol=0.2)


def test_a_part_that_no_step_contains_keeps_its_factor() -> None:
    slow = StepCost(0.008, 0.0006, 4e-7, 0.0001, 1e-8)
    cost = followed(TRUE, slow, [StepLoad(8, 4000)] * 100)
    assert math.isclose(cost.correction.fixed, 2.0, rel_tol=0.01)
    assert cost.correction.prefill == 1.0


def test_one_outlier_moves_it_little() -> None:
    cost = followed(TRUE, TRUE, [StepLoad(8, 4000, 100, chunk_pairs(0, 100))] * 50)
    load = StepLoad(8, 4000)
    for wild in (1000.0, 1e-6):
        assert 0.75 < cost.learned(load, wild).seconds(load) / TRUE.seconds(load) < 1.25


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_measurement_that_is_none_changes_nothing(seconds: float) -> None:
    assert TRUE.learned(StepLoad(1, 10), seconds) == TRUE
