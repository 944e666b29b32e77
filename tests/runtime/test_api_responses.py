"""POST /v1/responses over a scripted engine."""

import json
from pathlib import Path

import pytest

from tests.runtime.api import api, error_of, events
from tests.runtime.openai_schema import RESPONSE, RESPONSE_EVENT, check
from tests.runtime.scripted_engine import says

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": True}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_answer_has_openais_shape(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        answer = (await a.respond(instructions="Be brief.", store=True, metadata={"a": "b"})).json()
        check(answer, RESPONSE)
        assert answer["status"] == "completed"
        assert answer["output"][0]["content"][0]["text"] == "Hello"
        assert answer["usage"]["output_tokens"] == 6


async def test_events_come_in_the_official_order(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        response = await a.respond(stream=True)
        found = events(response.text)
        for event in found:
            check(event, RESPONSE_EVENT)
        kinds = [event["type"].removeprefix("response.") for event in found]
        assert kinds == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            *["output_text.delta"] * 5,
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        assert "".join(event["delta"] for event in found if event["type"].endswith("delta")) == "Hello"
        assert response.text.startswith("event: response.created\ndata: ")
        whole = (await a.respond()).json()["output"][0] | {"id": ""}
        assert found[-1]["response"]["output"][0] | {"id": ""} == whole


async def test_an_answer_that_is_cut_is_incomplete(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        answer = (await a.respond(max_output_tokens=2)).json()
        check(answer, RESPONSE)
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        last = events((await a.respond(max_output_tokens=2, stream=True)).text)[-1]
        assert last["type"] == "response.incomplete"


async def test_function_calls_are_items_with_events_of_their_own(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.script = says(f"Let me look. {CALL}")
        answer = (await a.respond(tools=[WEATHER])).json()
        check(answer, RESPONSE)
        message, call = answer["output"]
        assert message["type"] == "message" and call["type"] == "function_call"
        assert call["name"] == "weather" and json.loads(call["arguments"]) == {"city": "Bonn"}
        found = events((await a.respond(tools=[WEATHER], stream=True)).text)
        for event in found:
            check(event, RESPONSE_EVENT)
        done = [event for event in found if event["type"] == "response.function_call_arguments.done"]
        assert [json.loads(event["arguments"]) for event in done] == [{"city": "Bonn"}]
        assert found[-1]["response"]["output"][1]["arguments"] == call["arguments"]


async def test_items_become_the_same_prompt_as_chat_messages(tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
        {"role": "user", "content": "Sure?"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "Rain."},
        {"role": "user", "content": "Sure?"},
    ]
    async with api(tmp_path) as a:
        await a.respond(input=items, instructions="Brief.")
        response_ids = a.engine.request.prompt_ids
        await a.chat(messages=messages)
        assert a.engine.request.prompt_ids == response_ids


async def test_a_failure_in_a_stream_ends_with_error_and_failed(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.fails_after = 2
        found = events((await a.respond(stream=True)).text)
        for event in found:
            check(event, RESPONSE_EVENT)
        assert [event["type"] for event in found[-2:]] == ["error", "response.failed"]
        assert error_of(await a.respond(), 500)["code"] == "generation_failed"


async def test_logprobs_come_where_include_asks_for_them(tmp_path: Path) -> None:
    asked = {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2}
    async with api(tmp_path) as a:
        answer = (await a.respond(**asked)).json()
        check(answer, RESPONSE)
        assert len(answer["output"][0]["content"][0]["logprobs"]) == 5
        for event in events((await a.respond(**asked, stream=True)).text):
            check(event, RESPONSE_EVENT)


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"include": ["file_search_call.results"]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
    ],
)
async def test_what_needs_memory_or_more_than_text_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    async with api(tmp_path) as a:
        assert error_of(await a.respond(**fields), 400)["code"] == "unsupported_parameter"
