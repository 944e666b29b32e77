"""A19: several samples with a seed, of which one ends early, on a live stream."""

from typing import Any

from tests.runtime.cases.rig import Answer, Rig, some_ids

PROMPT = some_ids("a19", 40)
# Only letters, so that texts have no half characters.
LETTERS = {str(ord(letter)): 100 for letter in "abcdefghijklmnopqrstuvwxyz"}


def sampled(rig: Rig, **fields: Any) -> list[Answer]:
    return rig.streamed(PROMPT, 40, n=3, seed=11, temperature=1, logit_bias=LETTERS, **fields)


def early_stop(texts: list[str]) -> str:
    """Return what the first text has near its beginning and the others don't have at all."""
    for start in range(4, 12):
        piece = texts[0][start : start + 2]
        if piece not in texts[0][: start + 1] and not any(piece in text for text in texts[1:]):
            return piece
    raise AssertionError(f"no two letters belong to the first alone: {texts}")


def test_a19_one_sample_stops_early_and_the_others_go_on(rig: Rig) -> None:
    free = sampled(rig)
    texts = [answer.text for answer in free]
    assert len(set(texts)) == 3 and {answer.finish_reason for answer in free} == {"length"}
    stop = early_stop(texts)
    once, again = sampled(rig, stop=stop), sampled(rig, stop=stop)
    assert [answer.text for answer in once] == [texts[0][: texts[0].index(stop)], *texts[1:]]
    assert [answer.finish_reason for answer in once] == ["stop", "length", "length"]
    assert [(answer.ids, answer.text) for answer in once] == [(answer.ids, answer.text) for answer in again]
    # The prompt once; of the stopped sample the tokens up to its stop string.
    completion = texts[0].index(stop) + len(stop) + 80
    assert once[0].counts == (40, completion, 40 + completion)


def test_a19_a_whole_answer_equals_its_stream(rig: Rig) -> None:
    whole = rig.choices(PROMPT, 40, n=3, seed=11, temperature=1, logit_bias=LETTERS)
    assert [answer.ids for answer in whole] == [answer.ids for answer in sampled(rig)]


def test_a19_greedy_samples_are_equal(rig: Rig) -> None:
    answers = rig.choices(PROMPT, 24, n=3, seed=11)
    assert len({answer.ids for answer in answers}) == 1 and answers[0].counts == (40, 72, 112)
    rig.check_greedy(PROMPT, answers[0])


def test_a19_a_sample_alone_equals_the_first_of_several(rig: Rig) -> None:
    (alone,) = rig.choices(PROMPT, 40, n=1, seed=11, temperature=1, logit_bias=LETTERS)
    assert alone.ids == sampled(rig)[0].ids


def test_a19_as_many_samples_as_may_run_are_served_and_one_more_is_400(rig: Rig) -> None:
    with rig.settings(maxSequences=4):
        assert len(rig.choices(PROMPT, 4, n=4)) == 4
        refused = rig.post(rig.body(PROMPT, 4, n=5))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
