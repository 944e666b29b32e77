"""A02: prompts exactly on, one under and one over a block's edge, whole prompts cached already."""

from functools import partial

import pytest

from tests.runtime.cases.rig import BLOCK, Rig, at_once, some_ids

# What a partly equal block must have in common to be worth a copy of its page.
_LEAST_PART = BLOCK // 4


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_a02_a_prompt_on_a_blocks_edge_answers_the_same_cached_or_not(rig: Rig, length: int) -> None:
    prompt = some_ids(f"a02 {length}", length)
    with rig.settings(maxBatchTokens=20):
        in_turn = [rig.complete(prompt, 24) for _ in range(3)]
        answers = in_turn + at_once(rig, [partial(rig.complete, prompt, 24)] * 3)
    rig.check_greedy(prompt, answers[0])
    assert {answer.ids for answer in answers} == {answers[0].ids}
    assert {answer.counts for answer in answers} == {(length, 24, length + 24)}
    # Reuse counts tokens; the last token of a prompt is always computed.
    part = (length - 1) % BLOCK
    reused = length - 1 if part >= _LEAST_PART else length - 1 - part
    assert [answer.cached for answer in answers] == [0, *[reused] * 5]
