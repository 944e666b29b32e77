"""The real openai client against a real server with a tiny random model: every endpoint, streaming and not, and the
public bugs of other servers that need a real engine."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from tests.runtime.api import events
from tests.runtime.live_server import LiveServer, live_server
from tests.runtime.openai_schema import CHAT, CHAT_CHUNK, COMPLETION, RESPONSE, RESPONSE_EVENT, check
from tests.runtime.tiny_models import tiny_llama_directory

MODEL = "tiny"
MAX_LENGTH = 1024
USER: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Bonn", "Kiel"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama_directory(folder, max_position_embeddings=MAX_LENGTH)
    flags = ("--served-name", MODEL, "--kv-cache-budget-blocks", "80", "--model-max-length", str(MAX_LENGTH))
    with live_server(folder, *flags) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        yield http


def _post(http: httpx2.Client, path: str, **fields: Any) -> httpx2.Response:
    return http.post(path, json={"model": MODEL, **fields})


def _complete(http: httpx2.Client, **fields: Any) -> httpx2.Response:
    return _post(http, "/v1/completions", **{"prompt": "Hi", "temperature": 0, **fields})


def test_models_are_listed_and_found(client: OpenAI) -> None:
    [model] = list(client.models.list())
    assert model.id == MODEL and client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError) as found:
        client.models.retrieve("other")
    assert found.value.code == "model_not_found"


def test_chat_whole_and_streamed_say_the_same(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "temperature": 0, "max_tokens": 12, "n": 2, "logprobs": True}
    whole = client.chat.completions.create(**asked)
    check(json.loads(whole.to_json()), CHAT)
    texts = ["", ""]
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        check(json.loads(chunk.to_json()), CHAT_CHUNK)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions_whole_and_streamed_say_the_same(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": ["One", "Two"], "temperature": 0, "max_tokens": 8, "echo": True}
    whole = client.completions.create(**asked, logprobs=2)
    check(json.loads(whole.to_json()), COMPLETION)
    texts = ["", ""]
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert texts[0].startswith("One") and texts[1].startswith("Two")


def test_responses_whole_and_streamed_say_the_same(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Hi", "temperature": 0, "max_output_tokens": 8}
    whole = client.responses.create(**asked)
    check(json.loads(whole.to_json()), RESPONSE)
    found = list(client.responses.create(**asked, stream=True))
    for event in found:
        check(json.loads(event.to_json()), RESPONSE_EVENT)
    text = "".join(event.delta for event in found if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_a_response_in_a_schema_completes(client: OpenAI) -> None:
    shape: Any = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}
    asked: Any = {"model": MODEL, "input": "Hi", "text": shape, "max_output_tokens": 200, "extra_body": {"seed": 1}}
    with client.responses.stream(**asked) as stream:
        assert json.loads(stream.get_final_response().output_text).keys() == {"ok"}


def test_forced_tools_and_schemas_hold_on_a_random_model(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "max_tokens": 200, "seed": 1}
    called = client.chat.completions.create(**asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    check(json.loads(called.to_json()), CHAT)
    assert called.choices[0].finish_reason == "tool_calls"
    [call] = called.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Bonn", "Kiel")
    shape: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    shaped = client.chat.completions.create(**asked, response_format=shape)
    assert shaped.choices[0].finish_reason == "stop"
    assert json.loads(shaped.choices[0].message.content or "").keys() == {"ok"}


def test_a_schema_that_is_none_is_400(client: OpenAI) -> None:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "wizard"}}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=USER, response_format=shape)


def test_tokenize_counts_what_usage_counts(http: httpx2.Client) -> None:
    counted = _post(http, "/tokenize", messages=USER).json()
    usage = _post(http, "/v1/chat/completions", messages=USER, max_tokens=1).json()["usage"]
    assert counted["count"] == usage["prompt_tokens"] and counted["max_model_len"] == MAX_LENGTH
    assert _post(http, "/detokenize", tokens=[72, 105]).json()["prompt"] == "Hi"


def test_a16_prompt_logprobs_are_the_same_when_the_prompt_is_cached(http: httpx2.Client) -> None:
    answers = [_complete(http, prompt="x" * 33, echo=True, logprobs=1, max_tokens=1) for _ in range(2)]
    first, second = (answer.json()["choices"][0]["logprobs"]["token_logprobs"][:33] for answer in answers)
    assert len(first) == len(second) == 33 and first[0] is None
    assert first[1:] == pytest.approx(second[1:], abs=1e-4)


def test_a16_minus_infinity_under_a_mask_is_no_500(http: httpx2.Client) -> None:
    answer = _complete(http, echo=True, logprobs=20, top_k=1, response_format={"type": "json_object"}, max_tokens=4)
    assert answer.status_code == 200
    assert "Infinity" not in answer.text and "NaN" not in answer.text


def test_a18_every_length_edge_leaves_the_engine_alive(http: httpx2.Client) -> None:
    empty: list[Any] = ["", [""], [], [[]]]
    for prompt in empty:
        assert _complete(http, prompt=prompt).status_code == 400
    assert _complete(http, max_tokens=0, echo=True, logprobs=1).json()["usage"]["completion_tokens"] == 0
    full = MAX_LENGTH - 1
    assert _complete(http, prompt="x" * full, max_tokens=1).status_code == 200
    for prompt_tokens, max_tokens in ((full, 2), (MAX_LENGTH, 1), (MAX_LENGTH + 1, 1)):
        assert _complete(http, prompt="x" * prompt_tokens, max_tokens=max_tokens).status_code == 400
    open_end = _complete(http, prompt="x" * (MAX_LENGTH - 4), ignore_eos=True).json()
    assert open_end["usage"]["completion_tokens"] == 4 and open_end["choices"][0]["finish_reason"] == "length"
    assert _complete(http, max_tokens=2, ignore_eos=True).json()["usage"]["completion_tokens"] == 2


def test_a19_seeded_samples_differ_and_repeat(http: httpx2.Client) -> None:
    asked: dict[str, Any] = {"n": 3, "seed": 11, "temperature": 1, "prompt": "y" * 40, "max_tokens": 16}
    runs = [_complete(http, **asked).json() for _ in range(2)]
    texts = [[choice["text"] for choice in run["choices"]] for run in runs]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    assert runs[0]["usage"]["prompt_tokens"] == 40
    # A stop that the first sample alone reaches at its second character ends no other sample.
    stop = texts[0][0][1:3]
    chunks = events(_complete(http, **asked, stream=True, stop=stop).text)
    assert chunks.count("[DONE]") == 1
    ends = {c["index"]: c["finish_reason"] for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"]}
    assert set(ends) == {0, 1, 2} and ends[0] == "stop"
    greedy = _complete(http, n=3, max_tokens=8).json()["choices"]
    assert len({choice["text"] for choice in greedy}) == 1


def test_a20_cached_tokens_are_those_of_the_first_admission(http: httpx2.Client) -> None:
    cold, warm = (_complete(http, prompt="z" * 50, max_tokens=2).json()["usage"] for _ in range(2))
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < warm["prompt_tokens_details"]["cached_tokens"] <= 49
    assert warm["prompt_tokens"] == 50 and warm["total_tokens"] == 50 + warm["completion_tokens"]


def test_a24_broken_bodies_leave_the_server_up(http: httpx2.Client) -> None:
    headers = {"content-type": "application/json"}
    for body in (b"{", b"[]", b"5", b'"x"', b"", b"[" * 10_000, b'{"a":NaN}', b'{"model":"a\\ud83d"}'):
        answer = http.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"
    large = http.post("/v1/chat/completions", content=b" " * 20_000_000, headers=headers)
    assert large.status_code == 413
    too_long = _post(http, "/v1/chat/completions", messages=[{"role": "user", "content": "x" * 1999}], stream=True)
    assert too_long.status_code == 400 and too_long.json()["error"]["code"] == "context_length_exceeded"
    assert _complete(http, max_tokens=1).status_code == 200


def test_request_ids_come_back(client: OpenAI) -> None:
    raw = client.models.with_raw_response.list(extra_headers={"x-request-id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1"
