"""A06: a request that can never fit is refused with the numbers, and blocks nobody."""

from functools import partial

from tests.runtime.cases.rig import MODEL, Rig, at_once, some_ids

CAPACITY = 160  # 10 blocks of 16 tokens


def test_a06_start_up_says_that_the_longest_request_is_cut(small_rig: Rig) -> None:
    assert "longest request  160 tokens" in small_rig.server.log
    assert "512" in next(line for line in small_rig.server.log.splitlines() if "note: " in line)
    (model,) = small_rig.http.get("/v1/models").json()["data"]
    assert model["max_model_len"] == CAPACITY


def test_a06_what_never_fits_is_400_at_once_and_those_behind_are_served(small_rig: Rig) -> None:
    rig = small_rig
    for prompt_tokens, max_tokens in ((200, 10), (100, 100), (160, 1)):
        response = rig.post(rig.body(some_ids("a06", prompt_tokens), max_tokens))
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        for number in (CAPACITY, prompt_tokens, max_tokens):
            assert str(number) in error["message"]
        assert rig.complete(some_ids("behind", 5), 4).counts == (5, 4, 9)


def test_a06_what_just_fits_comes_to_its_end_beside_others(small_rig: Rig) -> None:
    prompts = [some_ids(f"a06 {number}", length) for number, length in enumerate((159, 80, 100, 5))]
    answers = at_once(small_rig, [partial(small_rig.complete, prompt, CAPACITY - len(prompt)) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.counts == (len(prompt), CAPACITY - len(prompt), CAPACITY)
        small_rig.check_greedy(prompt, answer)


def test_a06_choices_that_never_fit_together_take_turns(small_rig: Rig) -> None:
    prompt = some_ids("a06 turns", 80)
    answers = small_rig.choices(prompt, 80, n=4)
    assert len(answers) == 4 and {answer.counts for answer in answers} == {(80, 320, 400)}
    for answer in answers:
        small_rig.check_greedy(prompt, answer)


def test_a06_a_smaller_budget_cuts_the_longest_request_everywhere(rig: Rig) -> None:
    prompt = some_ids("a06 live", 100)
    with rig.settings(kvBlocks=10):
        assert rig.http.get(f"/v1/models/{MODEL}").json()["max_model_len"] == CAPACITY
        assert rig.http.post("/tokenize", json={"model": MODEL, "prompt": "x"}).json()["max_model_len"] == CAPACITY
        refused = rig.post(rig.body(prompt, 100))
        assert refused.status_code == 400 and str(CAPACITY) in refused.json()["error"]["message"]
        # Without max_tokens the answer takes what is left, of what is left now.
        body = rig.body(prompt, 1)
        del body["max_tokens"]
        whole = rig.post(body)
        assert whole.status_code == 200, whole.text
        assert whole.json()["usage"]["total_tokens"] == CAPACITY
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 40}], "ignore_eos": True}
        assert rig.http.post("/v1/chat/completions", json=chat).json()["usage"]["total_tokens"] == CAPACITY
        response = {"model": MODEL, "input": "x" * 40, "ignore_eos": True}
        assert rig.http.post("/v1/responses", json=response).json()["usage"]["total_tokens"] == CAPACITY
    assert rig.http.get(f"/v1/models/{MODEL}").json()["max_model_len"] == 512
