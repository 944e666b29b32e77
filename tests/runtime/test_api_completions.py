"""POST /v1/completions, /tokenize, /detokenize, /v1/models and /version over a scripted engine."""

from pathlib import Path

import pytest

from tests.runtime.api import COMPLETIONS_URL, RawCall, api, error_of, events, until
from tests.runtime.openai_schema import COMPLETION, MODEL_OBJECT, check, check_stream_completion

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_answer_has_openais_shape(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        answer = (await a.complete(n=2, logprobs=2)).json()
        check(answer, COMPLETION)
        assert [choice["text"] for choice in answer["choices"]] == ["Hello", "Hello"]
        assert answer["choices"][0]["logprobs"]["tokens"] == list("Hello")
        assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
        assert answer["usage"]["prompt_tokens"] == 2 and answer["usage"]["completion_tokens"] == 12


async def test_a_stream_ends_with_a_reason_for_each_choice_and_one_done(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        *chunks, last = events((await a.complete(n=2, stream=True)).text)
        assert last == "[DONE]"
        for chunk in chunks:
            check_stream_completion(chunk)
        for index in (0, 1):
            own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert "".join(choice["text"] for choice in own) == "Hello"
            assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], [72, 105], [[72, 105]]], ids=["text", "texts", "ids", "lists of ids"])
async def test_every_kind_of_prompt_reaches_the_engine_as_the_same_ids(tmp_path: Path, prompt: object) -> None:
    async with api(tmp_path) as a:
        assert (await a.complete(prompt=prompt, echo=True)).json()["choices"][0]["text"] == "HiHello"
        assert a.engine.request.prompt_ids == (72, 105)


async def test_choices_of_several_prompts_are_counted_through(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.script = lambda request, index: [*request.prompt_ids, 48 + index]
        answer = (await a.complete(prompt=["a", "bc", "d"], n=2)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
        assert [choice["text"] for choice in answer["choices"]] == ["a0", "a1", "bc0", "bc1", "d0", "d1"]
        assert answer["usage"]["prompt_tokens"] == 4
        *chunks, _ = events((await a.complete(prompt=["a", "bc", "d"], n=2, stream=True)).text)
        texts = dict.fromkeys(range(6), "")
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        assert list(texts.values()) == ["a0", "a1", "bc0", "bc1", "d0", "d1"]


async def test_one_refused_prompt_of_several_takes_the_others_back(tmp_path: Path) -> None:
    async with api(tmp_path, max_length_tokens=20) as a:
        assert error_of(await a.complete(prompt=["a", "b" * 30]), 400)["code"] == "context_length_exceeded"
        assert a.engine.requests == [] and a.client.in_flight == 0


async def test_a_client_that_leaves_takes_every_prompt_back(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        call = RawCall(a.app, COMPLETIONS_URL, {"prompt": ["a", "b", "c"], "stream": True})
        await until(lambda: len(a.engine.requests) == 3)
        await call.leave()
        assert sorted(a.engine.aborted) == sorted(request.request_id for request in a.engine.requests)
        assert a.client.in_flight == 0


async def test_echo_shows_the_prompt_with_its_logprobs(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        choice = (await a.complete(echo=True, logprobs=1, max_tokens=1)).json()["choices"][0]
        assert choice["text"] == "HiH"
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == ["H", "i", "H"] and logprobs["text_offset"] == [0, 1, 2]
        assert logprobs["token_logprobs"] == [None, -0.5, -0.5]
        assert logprobs["top_logprobs"] == [None, {"i": -0.5}, {"H": -0.5}]
        *chunks, _ = events((await a.complete(echo=True, logprobs=1, max_tokens=1, stream=True)).text)
        for chunk in chunks:
            check_stream_completion(chunk)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "HiH"
        assert [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]] == ["H", "i", "H"]


async def test_echo_without_tokens_is_the_prompt_alone(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        answer = (await a.complete(echo=True, logprobs=0, max_tokens=0, n=2)).json()
        check(answer, COMPLETION)
        assert [choice["text"] for choice in answer["choices"]] == ["Hi", "Hi"]
        assert answer["choices"][1]["logprobs"]["token_logprobs"] == [None, -0.5]
        assert answer["usage"]["completion_tokens"] == 0
        assert error_of(await a.complete(max_tokens=0), 400)["param"] == "max_tokens"


async def test_best_of_may_only_be_n(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        assert (await a.complete(best_of=2, n=2)).status_code == 200
        for best_of in (1, 3):
            assert error_of(await a.complete(best_of=best_of, n=2), 400)["param"] == "best_of"


async def test_tokenize_gives_what_the_endpoints_use_and_detokenize_its_text(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        messages = [{"role": "user", "content": "Ünï"}]
        tokens = (await a.post("/tokenize", {"messages": messages})).json()
        used = (await a.chat(messages=messages)).json()["usage"]["prompt_tokens"]
        assert tokens["count"] == used == len(tokens["tokens"]) and tokens["max_model_len"] == 512
        plain = (await a.post("/tokenize", {"prompt": "Ü", "return_token_strs": True})).json()
        assert plain["tokens"] == [0xC3, 0x9C] and plain["token_strs"] == ["bytes:\\xc3", "bytes:\\x9c"]
        assert (await a.post("/detokenize", {"tokens": plain["tokens"]})).json() == {"prompt": "Ü"}
        error_of(await a.post("/detokenize", {"tokens": [260]}), 400)
        error_of(await a.post("/tokenize", {}), 400)
        error_of(await a.post("/tokenize", {"prompt": "a", "model": "other"}), 404)


async def test_models_say_the_usable_length(tmp_path: Path) -> None:
    async with api(tmp_path, max_length_tokens=77) as a:
        listed = (await a.http.get("/v1/models")).json()
        assert listed["object"] == "list"
        [model] = listed["data"]
        assert model["max_model_len"] == 77
        assert (await a.http.get("/v1/models/tiny")).json() == model
        del model["max_model_len"]
        check(model, MODEL_OBJECT)
        assert error_of(await a.http.get("/v1/models/org/other"), 404)["code"] == "model_not_found"


async def test_version_is_open(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        assert set((await a.http.get("/version")).json()) == {"version"}
