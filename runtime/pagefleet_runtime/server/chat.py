"""POST /v1/chat/completions."""

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_runtime.errors import invalid
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.server.body import Received, read_object
from pagefleet_runtime.server.chat_choice import ChatChoice, ChatPiece, ToolRules, constraint
from pagefleet_runtime.server.errors import JSONAnswer
from pagefleet_runtime.server.generation import Generation, Job, TextRules, opened
from pagefleet_runtime.server.openai_requests import ChatRequest, validated
from pagefleet_runtime.server.openai_responses import Json, token_logprobs, usage_object
from pagefleet_runtime.server.service import Caller, ModelText, Service, json_body
from pagefleet_runtime.server.streaming import DONE, Answer, EventStream, data_frame
from pagefleet_runtime.server.treatment import CHAT, honoured
from pagefleet_runtime.server.validation import (
    Shown,
    answer_length,
    check_stream_options,
    check_text_size,
    num_characters,
    sampling_params,
    wants_usage,
)
from pagefleet_runtime.text.tool_calls import ToolCallDelta


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A checked request: what the engine is to do, and how the answer is to look."""

    job: Job
    tools: ToolRules
    fields: ChatRequest
    text: ModelText
    answer_id: str
    created: int


def chat_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        caller = service.caller(request)
        received = await read_object(request)
        fields = validated(ChatRequest, honoured(CHAT, received.values, service.unknown))
        service.check_model(fields.model)
        return Answer(lambda: _answer(service, fields, caller, received))

    return router


async def _answer(service: Service, fields: ChatRequest, caller: Caller, received: Received) -> Response:
    text = service.text.get()
    plan = await received.off_loop(lambda: plan_chat(fields, text, caller))
    if fields.stream:
        return EventStream(_frames(service, plan), patience_seconds=service.patience_seconds)
    async with opened(plan.job, service.client, text.tokenizer, service.figures) as generation:
        return JSONAnswer(await _whole(plan, generation))


def plan_chat(fields: ChatRequest, text: ModelText, caller: Caller) -> ChatPlan:
    """Check everything that can be checked before the engine is asked. Raises RequestRefused (400)."""
    check_stream_options(fields)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs is only allowed with logprobs: true", "top_logprobs")
    asks = constraint(fields.tools, fields.tool_choice, fields.parallel_tool_calls, fields.response_format)
    limit = text.length_limit
    check_text_size(num_characters(fields.messages), text.longest_token_bytes, limit, "messages")
    prompt_ids = text.chat_prompt.ids(fields.messages, asks.tools.shown, fields.chat_template_kwargs)
    asked, asked_by = fields.max_tokens, "max_tokens"
    if fields.max_completion_tokens is not None:
        asked, asked_by = fields.max_completion_tokens, "max_completion_tokens"
    params = sampling_params(
        fields,
        max_tokens=answer_length(len(prompt_ids), asked, limit, asked_by),
        vocab_size=text.info.vocab_size,
        shown=Shown(answer=(fields.top_logprobs or 0) if fields.logprobs else None),
        grammar=asks.grammar,
    )
    answer_id = caller.name_answer("chatcmpl-")
    request = GenerationRequest(
        answer_id, tuple(prompt_ids), params, fields.n, caller.tenant, fields.priority, caller.arrival_seconds
    )
    rules = TextRules(fields.stops, fields.include_stop_str_in_output)
    return ChatPlan(Job((request,), rules), asks.tools, fields, text, answer_id, int(time.time()))


@dataclass(slots=True)
class _Message:
    """A choice of an answer that is sent whole."""

    choice: ChatChoice
    text: list[str] = field(default_factory=list)
    calls: dict[int, Json] = field(default_factory=dict)
    logprobs: list[Json] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, piece: ChatPiece, plan: ChatPlan) -> None:
        self.text.append(piece.text)
        for call in piece.calls:
            function = self.calls.setdefault(call.index, _call_object(call))["function"]
            function["arguments"] += call.arguments
        self.logprobs.extend(_logprobs(plan, piece))
        self.finish_reason = piece.finish_reason or self.finish_reason

    def choice_object(self, index: int, plan: ChatPlan) -> Json:
        text = "".join(self.text)
        message: Json = {"role": "assistant", "content": text or None if self.calls else text, "refusal": None}
        if self.calls:
            message["tool_calls"] = list(self.calls.values())
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": self.logprobs, "refusal": None} if plan.fields.logprobs else None,
            "finish_reason": self.finish_reason,
        }


def _call_object(call: ToolCallDelta) -> Json:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": ""}}


def _logprobs(plan: ChatPlan, piece: ChatPiece) -> list[Json]:
    if not plan.fields.logprobs:
        return []
    return token_logprobs(plan.text.tokenizer, piece.tokens, plan.fields.top_logprobs or 0)


async def _whole(plan: ChatPlan, generation: Generation) -> Json:
    messages = [_Message(ChatChoice(plan.tools)) for _ in range(plan.fields.n)]
    async for piece in generation.pieces():
        message = messages[piece.choice_index]
        message.add(message.choice.push(piece), plan)
    return {
        "id": plan.answer_id,
        "object": "chat.completion",
        "created": plan.created,
        "model": plan.fields.model,
        "choices": [message.choice_object(index, plan) for index, message in enumerate(messages)],
        "usage": usage_object(generation.usage),
        "system_fingerprint": plan.text.fingerprint,
    }


async def _frames(service: Service, plan: ChatPlan) -> AsyncGenerator[bytes, None]:
    chunks = _Chunks(plan)
    choices = [ChatChoice(plan.tools) for _ in range(plan.fields.n)]
    async with (
        opened(plan.job, service.client, plan.text.tokenizer, service.figures) as generation,
        contextlib.aclosing(generation.pieces()) as pieces,
    ):
        started = False
        async for piece in pieces:
            if not started:
                started = True
                for index in range(plan.fields.n):
                    yield chunks.delta(index, {"role": "assistant", "content": "", "refusal": None})
            for frame in chunks.of(piece.choice_index, choices[piece.choice_index].push(piece)):
                yield frame
        if wants_usage(plan.fields):
            yield chunks.frame([], usage_object(generation.usage))
        yield DONE


class _Chunks:
    """Makes the frames of one stream."""

    def __init__(self, plan: ChatPlan) -> None:
        self._plan = plan
        self._head = {
            "id": plan.answer_id,
            "object": "chat.completion.chunk",
            "created": plan.created,
            "model": plan.fields.model,
            "system_fingerprint": plan.text.fingerprint,
        }

    def frame(self, choices: list[Json], usage: Json | None = None) -> bytes:
        chunk = self._head | {"choices": choices}
        return data_frame(chunk | {"usage": usage} if wants_usage(self._plan.fields) else chunk)

    def delta(self, index: int, delta: Json, logprobs: Any = None, finish_reason: str | None = None) -> bytes:
        return self.frame([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}])

    def of(self, index: int, piece: ChatPiece) -> list[bytes]:
        frames = []
        logprobs = _logprobs(self._plan, piece)
        if piece.text or logprobs:
            shown = {"content": logprobs, "refusal": None} if logprobs else None
            frames.append(self.delta(index, {"content": piece.text}, shown))
        for call in piece.calls:
            frames.append(self.delta(index, {"tool_calls": [_call_delta(call)]}))
        if piece.finish_reason is not None:
            frames.append(self.delta(index, {}, finish_reason=piece.finish_reason))
        return frames


def _call_delta(call: ToolCallDelta) -> Json:
    delta: Json = {"index": call.index, "function": {"arguments": call.arguments}}
    if call.call_id is not None:
        delta = {"index": call.index, "id": call.call_id, "type": "function"}
        delta["function"] = {"name": call.name, "arguments": call.arguments}
    return delta
