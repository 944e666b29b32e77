"""POST /v1/chat/completions over a scripted engine."""

import json
from pathlib import Path

import pytest

from pagefleet_contract.openai_error import Refusal
from tests.runtime.api import CHAT_URL, USER, RawCall, api, error_of, events, until
from tests.runtime.openai_schema import CHAT, CHAT_CHUNK, check
from tests.runtime.scripted_engine import ScriptedEngine, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_answer_has_openais_shape(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        response = await a.chat(n=2, logprobs=True, top_logprobs=2)
        assert response.status_code == 200
        answer = response.json()
        check(answer, CHAT)
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello", "Hello"]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
        assert len(answer["choices"][0]["logprobs"]["content"]) == 5
        assert answer["usage"]["completion_tokens"] == 12
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 12
        assert answer["id"].startswith("chatcmpl-") and answer["system_fingerprint"].startswith("fp_")


async def test_a_stream_is_role_deltas_finish_done(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        response = await a.chat(stream=True)
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, last = events(response.text)
        for chunk in chunks:
            check(chunk, CHAT_CHUNK)
            assert "usage" not in chunk
        assert last == "[DONE]"
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello"
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] == [
            "stop"
        ]
        assert len({chunk["id"] for chunk in chunks}) == 1


async def test_max_completion_tokens_counts_more_than_max_tokens(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        answer = (await a.chat(max_tokens=4, max_completion_tokens=2)).json()
        assert answer["choices"][0]["message"]["content"] == "He"
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_without_a_limit_the_answer_may_fill_the_context(tmp_path: Path) -> None:
    async with api(tmp_path, max_length_tokens=100) as a:
        answer = (await a.chat()).json()
        assert a.engine.request.params.max_tokens == 100 - answer["usage"]["prompt_tokens"]


async def test_streamed_and_whole_answers_carry_the_same_logprobs(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        whole = (await a.chat(logprobs=True, top_logprobs=3)).json()["choices"][0]["logprobs"]["content"]
        chunks = events((await a.chat(logprobs=True, top_logprobs=3, stream=True)).text)[:-1]
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        assert [entry for part in parts if part for entry in part["content"]] == whole
        assert [len(entry["top_logprobs"]) for entry in whole] == [3] * 5
        assert whole[0]["top_logprobs"][1]["logprob"] == -9999.0


async def test_stop_strings_end_the_choice_in_the_engine_too(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        choice = (await a.chat(stop=["lo", "x"])).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "stop")
        kept = (await a.chat(stop="l", include_stop_str_in_output=True)).json()["choices"][0]
        assert kept["message"]["content"] == "Hel"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_queued_takes_its_request_back(tmp_path: Path, stream: bool) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        call = RawCall(a.app, CHAT_URL, {"messages": USER, "stream": stream})
        await until(lambda: a.engine.requests)
        await call.leave()
        assert a.engine.aborted == [a.engine.request.request_id]
        assert call.sent == [] and a.client.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_grammar_compiles_takes_its_request_back(
    tmp_path: Path, stream: bool
) -> None:
    async with api(tmp_path) as a:
        a.engine.accepts = False
        call = RawCall(
            a.app, CHAT_URL, {"messages": USER, "stream": stream, "response_format": {"type": "json_object"}}
        )
        await until(lambda: a.engine.requests)
        await call.leave()
        assert a.engine.aborted == [a.engine.request.request_id]
        assert call.sent == [] and a.client.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_in_the_middle_takes_its_request_back(tmp_path: Path, stream: bool) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        call = RawCall(a.app, CHAT_URL, {"messages": USER, "stream": stream})
        await until(lambda: a.engine.requests)
        a.engine.step()
        if stream:
            await until(lambda: "H" in call.body)
        await call.leave()
        assert a.engine.aborted == [a.engine.request.request_id]
        assert a.client.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_is_a_status_in_both_modes(tmp_path: Path, stream: bool) -> None:
    async with api(tmp_path) as a:
        a.engine.refusal = Refusal(429, "queue_full", "512 requests wait already", retry_after_seconds=3)
        response = await a.chat(stream=stream)
        assert error_of(response, 429)["code"] == "queue_full"
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout_in_the_queue_is_a_status_in_both_modes(tmp_path: Path, stream: bool) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        call = RawCall(a.app, CHAT_URL, {"messages": USER, "stream": stream})
        await until(lambda: a.engine.requests)
        a.engine.reject(a.engine.request.request_id, Refusal(503, "queue_timeout", "waited too long", None, 1))
        await until(lambda: len(call.sent) > 1)
        assert call.sent[0]["status"] == 503
        assert json.loads(call.body)["error"]["code"] == "queue_timeout"
        await call.leave()


async def test_a_failure_before_the_first_token_is_a_status(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.fails_after = 0
        assert error_of(await a.chat(), 500)["code"] == "generation_failed"
        assert error_of(await a.chat(stream=True), 500)["code"] == "generation_failed"


async def test_a_failure_in_a_stream_is_an_error_event_and_the_end(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.fails_after = 2
        response = await a.chat(stream=True)
        assert response.status_code == 200
        last = events(response.text)[-1]
        assert last["error"]["code"] == "generation_failed" and last["error"]["type"] == "server_error"
        assert "[DONE]" not in response.text
        assert a.client.in_flight == 0


async def test_a_lost_engine_is_503_for_what_it_left_behind(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        call = RawCall(a.app, CHAT_URL, {"messages": USER})
        await until(lambda: a.engine.requests)
        a.engine.lose("killed by signal 9")
        await until(lambda: len(call.sent) > 1)
        assert call.sent[0]["status"] == 503
        await call.leave()
        assert error_of(await a.chat(), 503)["code"] == "engine_failed"


def _tools() -> list[dict[str, object]]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]


CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'


async def test_tool_calls_are_parsed_out_of_the_text(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.script = says(CALL)
        answer = (await a.chat(tools=_tools())).json()
        check(answer, CHAT)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"]) == {"city": "Bonn"}


async def test_streamed_tool_calls_say_id_and_name_once(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.script = says(f"Let me look. {CALL}{CALL}")
        chunks = events((await a.chat(tools=_tools(), stream=True)).text)[:-1]
        for chunk in chunks:
            check(chunk, CHAT_CHUNK)
        deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert [delta["index"] for delta in deltas if "id" in delta] == [0, 1]
        assert [delta["function"]["name"] for delta in deltas if "name" in delta["function"]] == ["weather"] * 2
        for index in (0, 1):
            arguments = "".join(delta["function"]["arguments"] for delta in deltas if delta["index"] == index)
            assert json.loads(arguments) == {"city": "Bonn"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_only_looked_like_the_beginning_of_a_call_is_text(tmp_path: Path, stream: bool) -> None:
    async with api(tmp_path) as a:
        a.engine.script = says("so <tool_ca")
        response = await a.chat(tools=_tools(), stream=stream)
        assert "so" in response.text and "<tool_ca" in response.text
        assert "tool_calls" not in response.text


async def test_without_parallel_calls_only_the_first_is_made(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.script = says(CALL + CALL)
        message = (await a.chat(tools=_tools(), parallel_tool_calls=False)).json()["choices"][0]["message"]
        assert len(message["tool_calls"]) == 1


async def test_tool_choice_none_hides_the_tools(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.script = says(CALL)
        message = (await a.chat(tools=_tools(), tool_choice="none")).json()["choices"][0]["message"]
        assert message["content"] == CALL and "tool_calls" not in message
        assert b"weather" not in bytes(token for token in a.engine.request.prompt_ids if token < 256)


async def test_a_loading_server_answers_503_with_retry_after(tmp_path: Path) -> None:
    async with api(tmp_path, ScriptedEngine(None)) as a:
        response = await a.chat()
        assert error_of(response, 503)["code"] == "model_loading"
        assert int(response.headers["retry-after"]) > 0
        models = await a.http.get("/v1/models")
        assert models.status_code == 200 and models.json()["data"][0]["id"] == "tiny"
        assert "max_model_len" not in models.json()["data"][0]
