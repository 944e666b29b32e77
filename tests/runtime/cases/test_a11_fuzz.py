"""A11: many requests with a common head in a small pool, some of them cancelled: every answer is the model's own."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runtime.cases.rig import Rig, answers_of, some_ids
from tests.runtime.cases.wire import Reply, post

HEAD = some_ids("a11", 24)
POOL_BLOCKS = 24
FEW, MANY = 60, 300


@dataclass(frozen=True)
class Trial:
    """One request of the fuzz: when it comes after the one before, what it asks, and when its client leaves."""

    gap_seconds: float
    body: dict[str, Any]
    leaves_after_seconds: float | None


def trials(rig: Rig, seed: int, count: int) -> list[Trial]:
    draw = random.Random(seed)
    return [_trial(rig, draw) for _ in range(count)]


def _trial(rig: Rig, draw: random.Random) -> Trial:
    prompt = HEAD + [draw.randrange(256) for _ in range(draw.randint(1, 40))]
    choices = 2 if draw.random() < 0.1 else 1
    # Answers take 10 to 50 ms here, and longer on slower machines: many leave before theirs.
    leaves = draw.uniform(0.0, 0.03) if draw.random() < 0.2 else None
    return Trial(draw.uniform(0.005, 0.03), rig.body(prompt, draw.randint(8, 48), n=choices), leaves)


async def _run(rig: Rig, trial: Trial) -> Reply | None:
    """Return the answer, or None where the client left before it."""
    try:
        async with asyncio.timeout(trial.leaves_after_seconds):
            return await post(rig.server, trial.body)
    except TimeoutError:
        return None


async def _fuzz(rig: Rig, all_trials: list[Trial]) -> list[Reply | None]:
    running = []
    for trial in all_trials:
        await asyncio.sleep(trial.gap_seconds)  # arrival times are the case's input
        running.append(asyncio.ensure_future(_run(rig, trial)))
    return await asyncio.gather(*running)


def fuzz(rig: Rig, seed: int, count: int) -> None:
    before = rig.snapshot()
    all_trials = trials(rig, seed, count)
    with rig.settings(kvBlocks=POOL_BLOCKS):
        replies = asyncio.run(_fuzz(rig, all_trials))
    answered = 0
    for trial, reply in zip(all_trials, replies, strict=True):
        if reply is None:
            continue
        assert reply.status == 200, reply
        answered += 1
        prompt, most = trial.body["prompt"], trial.body["max_tokens"]
        for answer in answers_of(reply.json()):
            assert len(answer.ids) == most and answer.counts[0] == len(prompt) and answer.cached < len(prompt)
            rig.check_greedy(prompt, answer)
    assert answered >= count * 0.7
    after = rig.snapshot()
    # It was under pressure, or it proved nothing.
    assert after["evictedBlocks"] > before["evictedBlocks"]
    assert after["outcomes"]["cancelled"] > before["outcomes"].get("cancelled", 0)


def test_a11_answers_under_eviction_pressure_are_the_models_own(rig: Rig) -> None:
    fuzz(rig, 11, FEW)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a11_three_hundred_answers_under_pressure_are_the_models_own(rig: Rig, seed: int) -> None:
    fuzz(rig, seed, MANY)
