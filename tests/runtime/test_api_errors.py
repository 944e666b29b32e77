"""How the API refuses: always OpenAI's error object, a right status, and nothing of ours in it."""

import gzip
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pagefleet_contract.engine import ServingSettings
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.server.body import parse_object
from pagefleet_runtime.server.openai_requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    validated,
)
from tests.runtime.api import CHAT_URL, USER, RawCall, api, error_of, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _nested(depth: int) -> bytes:
    return b'{"model":"tiny","messages":' + b"[" * depth + b"]" * depth + b"}"


BROKEN_BODIES = {
    "half an object": b"{",
    "an array": b"[]",
    "a number": b"5",
    "a string": b'"x"',
    "null": b"null",
    "nothing": b"",
    "ten thousand lists": _nested(10_000),
    "three hundred lists": _nested(300),
    "NaN": b'{"model":"tiny","messages":[],"temperature":NaN}',
    "infinity": b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"prompt":"x","metadata":{"a":1e999}}',
    "a number of 5,000 digits": b'{"model":"tiny","n":' + b"9" * 5000 + b"}",
    "half a surrogate": b'{"model":"tiny","messages":[{"role":"user","content":"a\\ud83d"}]}',
    "broken UTF-8": b'{"model":"tiny\xff"}',
    "something after the end": b'{"model":"tiny"} x',
}


@pytest.mark.parametrize("body", BROKEN_BODIES.values(), ids=BROKEN_BODIES.keys())
async def test_a24_broken_bodies_are_400(tmp_path: Path, body: bytes) -> None:
    async with api(tmp_path) as a:
        for url in (CHAT_URL, "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"):
            response = await a.http.post(url, content=body, headers={"content-type": "application/json"})
            assert error_of(response, 400)["type"] == "invalid_request_error"


async def test_a24_of_equal_keys_the_last_counts(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        body = b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"n":1,"n":2}'
        response = await a.http.post(CHAT_URL, content=body, headers={"content-type": "application/json"})
        assert len(response.json()["choices"]) == 2


async def test_a24_a_body_too_large_is_413_with_or_without_its_length(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        headers = {"content-type": "application/json"}
        large = b'{"model":"' + b"x" * 20_000_000 + b'"}'
        assert error_of(await a.http.post(CHAT_URL, content=large, headers=headers), 413)["code"] == "body_too_large"

        async def chunks() -> Any:
            for start in range(0, len(large), 2**20):
                yield large[start : start + 2**20]

        response = await a.http.post(CHAT_URL, content=chunks(), headers=headers)
        assert error_of(response, 413)["code"] == "body_too_large"


async def test_a24_the_model_must_be_named_exactly(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        response = await a.http.post(CHAT_URL, json={"messages": USER})
        assert error_of(response, 400)["param"] == "model"
        for name in ("other", "TINY", ""):
            error = error_of(await a.chat(model=name), 404)
            assert error["code"] == "model_not_found" and "'tiny'" in error["message"]


async def test_a24_unknown_fields_are_ignored_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with api(tmp_path) as a:
        for _ in range(3):
            assert (await a.chat(foo={"bar": 1}, user="u", bootstrap_host="2.2.2.2")).status_code == 200
        told = [record.getMessage() for record in caplog.records if "unknown parameter" in record.getMessage()]
        assert [("'foo'" in line, "'bootstrap_host'" in line) for line in told] == [(True, False), (False, True)]


async def test_a24_chinese_text_survives_every_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with api(tmp_path, max_length_tokens=5000) as a:
        messages = [{"role": "user", "content": "汉" * 1200}]
        assert (await a.chat(messages=messages, **{"汉" * 1200: 1})).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a24_another_content_type_is_415(tmp_path: Path, content_type: str) -> None:
    async with api(tmp_path) as a:
        headers = {"content-type": content_type} if content_type else {}
        error_of(await a.http.post(CHAT_URL, content=b"{}", headers=headers), 415)


async def test_a_compressed_body_is_415_and_says_so(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        headers = {"content-type": "application/json", "content-encoding": "GZIP"}
        error = error_of(await a.http.post(CHAT_URL, content=gzip.compress(b"{}"), headers=headers), 415)
        assert error["message"] == "the content-encoding is 'gzip'; send the JSON uncompressed, without it"


async def test_a24_a_stream_with_a_too_long_prompt_is_400_before_any_event(tmp_path: Path) -> None:
    async with api(tmp_path, max_length_tokens=64) as a:
        response = await a.chat(messages=[{"role": "user", "content": "x" * 100}], stream=True)
        assert error_of(response, 400)["code"] == "context_length_exceeded"
        assert response.headers["content-type"] == "application/json"


async def test_a_limit_of_the_budget_is_told_as_one(tmp_path: Path) -> None:
    long, huge = "x" * 32, "x" * 10_000
    said = [{"role": "user", "content": long}]
    async with api(tmp_path, max_length_tokens=32, allowed_length_tokens=8192) as a:
        for response in (await a.chat(messages=said), await a.respond(input=long), await a.complete(prompt=long)):
            told = error_of(response, 400)["message"]
            assert "at most 32 tokens here" in told and "(kvCache.budget) holds no more of the 8192 allowed" in told
            assert told.endswith("shorten the prompt, or have the server's budget raised")
        assert "kvCache.budget" in error_of(await a.complete(prompt=huge), 400)["message"]
    async with api(tmp_path, max_length_tokens=32) as a:
        assert "budget" not in error_of(await a.chat(messages=said), 400)["message"]
        assert "budget" not in error_of(await a.complete(prompt=huge), 400)["message"]


WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": "hot"},
    "top_p": {"top_p": 1.5},
    "n": {"n": 0},
    "max_tokens": {"max_tokens": -1},
    "top_logprobs": {"top_logprobs": 3},
    "stop": {"stop": ["a", "b", "c", "d", "e"]},
    "stop.1": {"stop": ["a", ""]},
    "logit_bias": {"logit_bias": {"x": 1}},
    "logit_bias.5": {"logit_bias": {"5": 101}},
    "stop_token_ids": {"stop_token_ids": [260]},
    "stream_options": {"stream_options": {}},
    "messages": {"messages": []},
    "messages.0": {"messages": ["x"]},
    "seed": {"seed": 2**70},
    "chat_template": {"chat_template": "{{ 1 }}"},
    "chat_template_kwargs": {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
    "chat_template_kwargs.thinking": {"chat_template_kwargs": {"thinking": [True]}},
}


@pytest.mark.parametrize(("param", "fields"), WRONG_FIELDS.items(), ids=WRONG_FIELDS.keys())
async def test_a_wrong_field_is_named(tmp_path: Path, param: str, fields: dict[str, Any]) -> None:
    async with api(tmp_path) as a:
        assert error_of(await a.chat(**fields), 400)["param"] == param


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CompletionRequest, {"prompt": [None] * 50_000}),
        (CompletionRequest, {"prompt": [[None]] * 50_000}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(number): "x" for number in range(50_000)}}),
        (ChatRequest, {"messages": [None] * 50_000}),
        (ResponsesRequest, {"input": [None] * 50_000}),
        (ResponsesRequest, {"input": "a", "include": [None] * 50_000}),
        (DetokenizeRequest, {"tokens": [None] * 50_000}),
    ],
)
def test_of_very_many_wrong_items_few_are_reported(model: type[Body], fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refused:
        validated(model, {"model": "tiny", **fields})

    assert isinstance(refused.value.__cause__, ValidationError)
    assert refused.value.__cause__.error_count() < 10


async def test_a_text_too_long_by_far_is_refused_without_being_tokenised(tmp_path: Path) -> None:
    huge = "word " * 1_000_000
    async with api(tmp_path) as a:
        for response in (
            await a.complete(prompt=huge),
            await a.chat(messages=[{"role": "user", "content": [{"type": "text", "text": huge}]}]),
            await a.respond(input=huge),
        ):
            error = error_of(response, 400)
            assert error["code"] == "context_length_exceeded" and "characters" in error["message"]


async def test_a_token_id_outside_the_vocabulary_is_400(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        assert error_of(await a.complete(prompt=[[72], [260]]), 400)["param"] == "prompt"
        assert error_of(await a.complete(logit_bias={"260": 1}), 400)["param"] == "logit_bias"


async def test_unknown_paths_and_wrong_methods_have_the_same_shape(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        assert error_of(await a.http.get("/v1/embeddings"), 404)["code"] == "unknown_url"
        error_of(await a.http.get("/v1/models/"), 404)
        wrong = await a.http.get(CHAT_URL)
        assert error_of(wrong, 405)["code"] == "method_not_allowed"
        assert wrong.headers["allow"] == "POST"


async def test_with_keys_every_api_path_wants_one(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice=secret-a\nbob=secret-b\n")
    serving = ServingSettings(api_keys_file=str(tmp_path / "keys"))
    async with api(tmp_path, serving=serving) as a:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret-a"}):
            response = await a.post(CHAT_URL, {"messages": USER}, **headers)
            assert error_of(response, 401)["code"] == "invalid_api_key"
            error_of(await a.http.get("/v1/models", headers=headers), 401)
            error_of(await a.post("/tokenize", {"prompt": "x"}, **headers), 401)
        assert (await a.http.get("/version")).status_code == 200
        good = await a.post(CHAT_URL, {"messages": USER, "user": "alice"}, authorization="Bearer secret-b")
        assert good.status_code == 200
        assert a.engine.request.tenant == "bob"


async def test_the_request_id_is_echoed_if_it_is_safe(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        echoed = await a.post(CHAT_URL, {"messages": USER}, **{"x-request-id": "abc-1"})
        assert echoed.headers["x-request-id"] == "abc-1"
        for unsafe in ("x" * 129, "a b", 'a"b'):
            made = await a.post(CHAT_URL, {"messages": USER}, **{"x-request-id": unsafe})
            assert made.headers["x-request-id"].startswith("req-")
        assert (await a.http.get("/nothing")).headers["x-request-id"]


async def test_equal_request_ids_at_once_are_both_served(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        calls = [RawCall(a.app, CHAT_URL, {"messages": USER}) for _ in range(2)]
        await until(lambda: len(a.engine.requests) == 2)
        assert len({request.request_id for request in a.engine.requests}) == 2
        for call in calls:
            await call.leave()


async def test_a_bug_is_a_plain_500_with_the_trace_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with api(tmp_path) as a:

        def broken(request: object, index: int) -> list[int]:
            raise ZeroDivisionError("a bug")

        a.engine.script = broken
        response = await a.post(CHAT_URL, {"messages": USER}, **{"x-request-id": "abc-1"})
        assert error_of(response, 500)["code"] == "internal_error"
        [record] = [record for record in caplog.records if record.exc_info]
        assert "abc-1" in record.getMessage()


def test_json_is_parsed_without_losing_anything() -> None:
    assert parse_object('{"a": "😀\\ud83d\\ude00", "b": [1, 1.5, null]}'.encode()) == {"a": "😀😀", "b": [1, 1.5, None]}
