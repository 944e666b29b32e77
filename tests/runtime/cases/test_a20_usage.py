"""A20: usage with a warm prefix, with preemption, with a stop string, and figures of a client that dropped."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.runtime.cases.rig import Answer, Rig, at_once, in_flight, run_until, some_ids
from tests.runtime.cases.wire import RawRequest


def test_a20_a_warm_prefix_shows_in_stream_and_whole_answer_alike(rig: Rig) -> None:
    head = some_ids("a20 warm", 48)
    rig.complete(head, 1)
    prompt = [*head, *some_ids("a20 tail", 9)]
    (streamed,) = rig.streamed(prompt, 8)
    rig.change(resetPrefixCache=True)
    rig.complete(head, 1)
    whole = rig.complete(prompt, 8)
    assert streamed.usage == whole.usage
    assert streamed.cached == 48 and streamed.counts == (57, 8, 65)
    rig.check_greedy(prompt, streamed)


def test_a20_preemption_changes_no_usage(rig: Rig) -> None:
    head = some_ids("a20 head", 32)
    prompts = [[*head, *some_ids(f"a20 {number}", 8)] for number in range(4)]
    rig.change(resetPrefixCache=True)
    rig.complete([*head, 1], 1)
    before = rig.snapshot()["preemptions"].get("blocks", 0)
    with rig.settings(kvBlocks=10):
        answers = at_once(rig, [partial(_streamed, rig, prompt) for prompt in prompts])
    assert rig.snapshot()["preemptions"]["blocks"] > before
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.counts == (40, 60, 100) and len(answer.ids) == 60
        # What its first admission found, not what a resumed one found of its own.
        assert answer.cached == 32
        rig.check_greedy(prompt, answer)


def _streamed(rig: Rig, prompt: list[int]) -> Answer:
    (answer,) = rig.streamed(prompt, 60)
    return answer


def test_a20_what_a_resumed_request_finds_of_its_own_is_no_reuse(rig: Rig) -> None:
    rig.change(resetPrefixCache=True)
    before = rig.snapshot()["preemptions"].get("blocks", 0)
    older, younger = some_ids("a20 older", 64), some_ids("a20 younger", 64)
    with rig.settings(kvBlocks=10), ThreadPoolExecutor(2) as pool:
        # Both at once: the older takes a block of the younger at its 81st token, and ends soon after that.
        with rig.server.frozen_engine():
            first = pool.submit(rig.complete, older, 22)
            rig.server.wait_until(lambda: in_flight(rig) == 1)
            second = pool.submit(rig.complete, younger, 40)
            rig.server.wait_until(lambda: in_flight(rig) == 2)
        answers = first.result(), second.result()
    assert rig.snapshot()["preemptions"]["blocks"] > before
    assert [answer.cached for answer in answers] == [0, 0]
    rig.check_greedy(younger, answers[1])


def test_a20_a_stop_string_counts_the_tokens_up_to_it(rig: Rig) -> None:
    letters = {str(ord(letter)): 100 for letter in "abcdefgh"}
    prompt = some_ids("a20 stop", 20)
    text = rig.complete(prompt, 30, logit_bias=letters, seed=3, temperature=1).text
    stop = text[9:12]
    end = text.index(stop)
    fields = {"logit_bias": letters, "seed": 3, "temperature": 1, "stop": stop}
    (streamed,), whole = rig.streamed(prompt, 30, **fields), rig.complete(prompt, 30, **fields)
    assert streamed.text == whole.text == text[:end]
    assert streamed.counts == whole.counts == (20, end + 3, 23 + end)


def test_a20_a_client_that_drops_at_token_5_shows_in_the_metrics(rig: Rig) -> None:
    prompt = some_ids("a20 drop", 21)
    before, outcomes = rig.figures(), rig.outcomes()
    generated = rig.snapshot()["generatedTokens"]
    with rig.server.frozen_engine():
        with RawRequest(rig.server, rig.body(prompt, 480, stream=True)):
            rig.server.wait_until(lambda: in_flight(rig) == 1)
            run_until(rig, lambda now: now["generatedTokens"] >= generated + 5)
        rig.server.wait_until(lambda: in_flight(rig) == 0)
    rig.server.wait_until(lambda: rig.outcomes()["cancelled"] == outcomes["cancelled"] + 1)
    after = rig.figures()
    assert rig.outcomes() == outcomes | {"cancelled": outcomes["cancelled"] + 1}
    assert after["pagefleet_prompt_tokens_total", ""] - before["pagefleet_prompt_tokens_total", ""] == 21
    assert 5 <= after["pagefleet_generation_tokens_total", ""] - before["pagefleet_generation_tokens_total", ""] < 480
