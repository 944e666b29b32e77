"""A13: equal chunks behind different beginnings are different prefixes, whatever key the process hashes with."""

import pytest

from tests.runtime.cases.rig import Rig, some_ids

X, Y, Z = (some_ids(f"a13 {name}", 16) for name in "XYZ")


def check_chunks(rig: Rig) -> None:
    rig.change(resetPrefixCache=True)
    prompts = [X + Z, Y + Z, Z, X + Z]
    answers = [rig.complete(prompt, 24) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        rig.check_greedy(prompt, answer)
    assert answers[0].ids == answers[3].ids
    # The last token is computed again; the rest of Z comes as a part of a block.
    assert [answer.cached for answer in answers] == [0, 0, 0, 31]


def test_a13_a_chunk_is_found_behind_its_own_beginning_only(rig: Rig) -> None:
    check_chunks(rig)


def test_a13_it_is_so_in_another_process_with_another_hash_key(small_rig: Rig) -> None:
    check_chunks(small_rig)


@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_a13_one_other_token_anywhere_is_another_prefix(rig: Rig, place: int) -> None:
    rig.change(resetPrefixCache=True)
    prompt = X + Z
    rig.complete(prompt, 4)
    other = [*prompt[:place], (prompt[place] + 1) % 256, *prompt[place + 1 :]]
    answer = rig.complete(other, 24)
    rig.check_greedy(other, answer)
    assert answer.cached == {0: 0, 15: 15, 16: 16, 31: 31}[place]
    # Nor has the other left its tokens in what they shared.
    again = rig.complete(prompt, 24)
    rig.check_greedy(prompt, again)
    assert again.cached == 31
