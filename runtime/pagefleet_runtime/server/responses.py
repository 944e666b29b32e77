"""POST /v1/responses, without memory: the client sends the whole conversation each time."""

import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.server.body import Received, read_object
from pagefleet_runtime.server.chat_choice import ChatChoice, ToolRules, constraint
from pagefleet_runtime.server.errors import JSONAnswer
from pagefleet_runtime.server.generation import Job, TextRules, Usage, opened
from pagefleet_runtime.server.openai_requests import ResponsesRequest, validated
from pagefleet_runtime.server.openai_responses import Json, token_logprobs
from pagefleet_runtime.server.responses_input import (
    chat_format,
    chat_tool_choice,
    chat_tools,
    messages_of,
    wants_logprobs,
)
from pagefleet_runtime.server.responses_output import ResponseOutput
from pagefleet_runtime.server.service import Caller, ModelText, Service, json_body
from pagefleet_runtime.server.streaming import Answer, EventStream, event_frame
from pagefleet_runtime.server.treatment import RESPONSES, honoured
from pagefleet_runtime.server.validation import (
    Shown,
    answer_length,
    check_stream_options,
    check_text_size,
    num_characters,
    sampling_params,
)
from pagefleet_runtime.text.choice_text import TextToken


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A checked request: what the engine is to do, and how the answer is to look."""

    job: Job
    tools: ToolRules
    fields: ResponsesRequest
    text: ModelText
    answer_id: str
    created: int
    with_logprobs: bool

    def logprobs_of(self, tokens: Sequence[TextToken]) -> list[Json]:
        if not self.with_logprobs:
            return []
        return token_logprobs(self.text.tokenizer, tokens, self.fields.top_logprobs or 0)


def responses_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=json_body(ResponsesRequest))
    async def create_response(request: Request) -> Response:
        """Answer an input."""
        caller = service.caller(request)
        received = await read_object(request)
        fields = validated(ResponsesRequest, honoured(RESPONSES, received.values, service.unknown))
        service.check_model(fields.model)
        return Answer(lambda: _answer(service, fields, caller, received))

    return router


async def _answer(service: Service, fields: ResponsesRequest, caller: Caller, received: Received) -> Response:
    text = service.text.get()
    plan = await received.off_loop(lambda: plan_response(fields, text, caller))
    if fields.stream:
        frames = _Frames(plan)
        return EventStream(
            frames.of(_events(service, plan)), patience_seconds=service.patience_seconds, error_frame=frames.failure
        )
    async with contextlib.aclosing(_events(service, plan)) as events:
        last: Json = {}
        async for event in events:
            last = event
        return JSONAnswer(last["response"])


def plan_response(fields: ResponsesRequest, text: ModelText, caller: Caller) -> ResponsePlan:
    """Check everything that can be checked before the engine is asked. Raises RequestRefused (400)."""
    check_stream_options(fields)
    with_logprobs = wants_logprobs(fields)
    asks = constraint(
        chat_tools(fields.tools),
        chat_tool_choice(fields.tool_choice),
        fields.parallel_tool_calls,
        chat_format(fields.text),
    )
    limit = text.length_limit
    check_text_size(num_characters(fields.input), text.longest_token_bytes, limit, "input")
    prompt_ids = text.chat_prompt.ids(messages_of(fields), asks.tools.shown)
    params = sampling_params(
        fields,
        max_tokens=answer_length(len(prompt_ids), fields.max_output_tokens, limit, "max_output_tokens"),
        vocab_size=text.info.vocab_size,
        shown=Shown(answer=(fields.top_logprobs or 0) if with_logprobs else None),
        grammar=asks.grammar,
    )
    answer_id = caller.name_answer("resp_")
    request = GenerationRequest(
        answer_id, tuple(prompt_ids), params, 1, caller.tenant, fields.priority, caller.arrival_seconds
    )
    rules = TextRules(fields.stops, fields.include_stop_str_in_output)
    return ResponsePlan(Job((request,), rules), asks.tools, fields, text, answer_id, int(time.time()), with_logprobs)


async def _events(service: Service, plan: ResponsePlan) -> AsyncGenerator[Json, None]:
    """Yield the events of one response; the last one carries the whole of it."""
    choice = ChatChoice(plan.tools)
    output = ResponseOutput(plan.logprobs_of)
    async with (
        opened(plan.job, service.client, plan.text.tokenizer, service.figures) as generation,
        contextlib.aclosing(generation.pieces()) as pieces,
    ):
        started = False
        finish_reason: str | None = None
        async for piece in pieces:
            if not started:
                started = True
                yield {"type": "response.created", "response": _response(plan, "in_progress")}
                yield {"type": "response.in_progress", "response": _response(plan, "in_progress")}
            chat_piece = choice.push(piece)
            finish_reason = chat_piece.finish_reason or finish_reason
            for event in output.push(chat_piece):
                yield event
        status = "incomplete" if finish_reason == "length" else "completed"
        for event in output.close(status):
            yield event
        whole = _response(plan, status, output.items, generation.usage)
        yield {"type": f"response.{status}", "response": whole}


class _Frames:
    """Numbers the events of one stream."""

    def __init__(self, plan: ResponsePlan) -> None:
        self._plan = plan
        self._numbers = itertools.count()

    async def of(self, events: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(events):
            async for event in events:
                yield self._frame(event)

    def failure(self, error: Json) -> bytes:
        """Return the stream's last events, for an error after its first."""
        told = error["error"]
        kept = {"code": "server_error", "message": told["message"]}
        failed = _response(self._plan, "failed") | {"error": kept}
        event = {"type": "error", "code": told["code"], "message": told["message"], "param": told["param"]}
        return self._frame(event) + self._frame({"type": "response.failed", "response": failed})

    def _frame(self, event: Json) -> bytes:
        return event_frame(event["type"], event | {"sequence_number": next(self._numbers)})


def _response(plan: ResponsePlan, status: str, output: Sequence[Json] = (), usage: Usage | None = None) -> Json:
    fields = plan.fields
    incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": plan.answer_id,
        "object": "response",
        "created_at": plan.created,
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": incomplete,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": {},
        "model": fields.model,
        "output": list(output),
        "parallel_tool_calls": fields.parallel_tool_calls,
        "previous_response_id": None,
        "temperature": fields.temperature,
        "text": {"format": fields.text.get("format") or {"type": "text"}},
        "tool_choice": fields.tool_choice,
        "tools": [_tool_object(tool) for tool in fields.tools],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "truncation": "disabled",
        "usage": None if usage is None else _usage_object(usage),
    }


def _tool_object(tool: Json) -> Json:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict") is True,
    }


def _usage_object(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
