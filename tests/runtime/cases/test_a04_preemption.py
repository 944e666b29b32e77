"""A04: streams that are preempted and resumed lose no token and get none twice; draws and penalties go on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.runtime.cases.rig import Answer, Rig, at_once, in_flight, run_until, some_ids

SEEDS = (1, 2, 3, 4)
PROMPT_TOKENS, ANSWER_TOKENS = 30, 60


def sampled(rig: Rig, seed: int) -> Answer:
    (answer,) = rig.streamed(
        some_ids(f"a04 {seed}", PROMPT_TOKENS), ANSWER_TOKENS, seed=seed, temperature=0.8, frequency_penalty=0.7
    )
    return answer


@pytest.fixture
def alone(rig: Rig) -> Iterator[list[Answer]]:
    """The answers of a pool with room for all, one at a time and without reuse."""
    answers = []
    for seed in SEEDS:
        rig.change(resetPrefixCache=True)
        answers.append(sampled(rig, seed))
    assert {answer.cached for answer in answers} == {0}
    rig.change(resetPrefixCache=True)
    yield answers


def check_equal(answers: list[Answer], alone: list[Answer]) -> None:
    assert [answer.ids for answer in answers] == [answer.ids for answer in alone]
    for answer in answers:
        assert len(answer.ids) == ANSWER_TOKENS and answer.finish_reason == "length"
        assert answer.counts == (PROMPT_TOKENS, ANSWER_TOKENS, PROMPT_TOKENS + ANSWER_TOKENS)


def test_a04_preempted_streams_give_what_they_give_alone(rig: Rig, alone: list[Answer]) -> None:
    before = rig.snapshot()
    with rig.settings(kvBlocks=12):
        answers = at_once(rig, [partial(sampled, rig, seed) for seed in SEEDS])
    after = rig.snapshot()
    check_equal(answers, alone)
    assert {answer.cached for answer in answers} == {0}
    assert after["preemptions"]["blocks"] - before["preemptions"].get("blocks", 0) >= 2
    assert after["recomputedTokens"]["blocks"] > before["recomputedTokens"].get("blocks", 0)
    # Recomputed tokens are neither prompt nor answer once more.
    assert after["promptTokens"] - before["promptTokens"] == len(SEEDS) * PROMPT_TOKENS
    assert after["generatedTokens"] - before["generatedTokens"] == len(SEEDS) * ANSWER_TOKENS


def test_a04_a_smaller_budget_preempts_what_runs_and_changes_no_answer(rig: Rig, alone: list[Answer]) -> None:
    before = rig.snapshot()["preemptions"].get("budget", 0)
    with rig.restoring("kvBlocks"), ThreadPoolExecutor(len(SEEDS) + 1) as pool:
        with rig.server.frozen_engine():
            running = [pool.submit(sampled, rig, seed) for seed in SEEDS]
            rig.server.wait_until(lambda: in_flight(rig) == len(SEEDS))
            run_until(rig, lambda now: now["blocksLive"] > 12)
            changing = pool.submit(rig.change, kvBlocks=6)
            run_until(rig, lambda now: now["preemptions"].get("budget", 0) > before)
        changing.result()
        answers = [answer.result() for answer in running]
    check_equal(answers, alone)


@pytest.mark.long
def test_a04_with_swap_off_nothing_is_preempted_and_the_answers_are_the_same(
    reserving_rig: Rig, alone: list[Answer]
) -> None:
    answers = at_once(reserving_rig, [partial(sampled, reserving_rig, seed) for seed in SEEDS])
    check_equal(answers, alone)
    assert sum(reserving_rig.snapshot()["preemptions"].values()) == 0
