"""POST /v1/completions."""

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_runtime.errors import invalid
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.server.body import Received, read_object
from pagefleet_runtime.server.completion_prompts import Prompt, echoed_logprobs, prompts_of
from pagefleet_runtime.server.errors import JSONAnswer
from pagefleet_runtime.server.generation import Generation, Job, TextRules, Usage, opened
from pagefleet_runtime.server.openai_requests import MAX_CHOICES, CompletionRequest, validated
from pagefleet_runtime.server.openai_responses import CompletionLogprobs, Json, usage_object
from pagefleet_runtime.server.service import Caller, ModelText, Service, json_body
from pagefleet_runtime.server.streaming import DONE, Answer, EventStream, data_frame
from pagefleet_runtime.server.treatment import COMPLETIONS, honoured
from pagefleet_runtime.server.validation import (
    Shown,
    answer_length,
    check_stream_options,
    sampling_params,
    wants_usage,
)
from pagefleet_runtime.text.choice_text import TextDelta
from pagefleet_runtime.text.constraints import response_grammar


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """A checked request: what the engine is to do, and how the answer is to look."""

    job: Job
    prompts: tuple[Prompt, ...]
    fields: CompletionRequest
    text: ModelText
    answer_id: str
    created: int

    @property
    def generates(self) -> bool:
        """False for max_tokens 0: then the prompt is echoed, and the engine is asked for its logprobs at most."""
        return self.fields.max_tokens != 0

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.fields.n


def completions_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        """Continue one prompt or several."""
        caller = service.caller(request)
        received = await read_object(request)
        kept = honoured(COMPLETIONS, received.values, service.unknown)
        fields = await received.off_loop(lambda: validated(CompletionRequest, kept))
        service.check_model(fields.model)
        return Answer(lambda: _answer(service, fields, caller, received))

    return router


async def _answer(service: Service, fields: CompletionRequest, caller: Caller, received: Received) -> Response:
    text = service.text.get()
    plan = await received.off_loop(lambda: plan_completion(fields, text, caller))
    if fields.stream:
        return EventStream(_frames(service, plan), patience_seconds=service.patience_seconds)
    choices = [_Choice(plan, index) for index in range(plan.num_choices)]
    async with opened(plan.job, service.client, text.tokenizer, service.figures) as generation:
        async for _ in _changes(plan, generation, choices):
            pass
        usage = usage_object(_usage(plan, generation))
        return JSONAnswer(_head(plan) | {"choices": [choice.take() for choice in choices], "usage": usage})


def plan_completion(fields: CompletionRequest, text: ModelText, caller: Caller) -> CompletionPlan:
    """Check everything that can be checked before the engine is asked. Raises RequestRefused (400)."""
    check_stream_options(fields)
    if fields.best_of is not None and fields.best_of != fields.n:
        raise invalid(f"best_of is {fields.best_of} and n is {fields.n}; only best_of equal to n is served", "best_of")
    if fields.max_tokens == 0 and not fields.echo:
        raise invalid("max_tokens is 0; that is only allowed with echo: true, or ask for at least 1", "max_tokens")
    answer_id = caller.name_answer("cmpl-")
    prompts = prompts_of(fields, text)
    if len(prompts) * fields.n > MAX_CHOICES:
        raise invalid(f"{len(prompts)} prompts with n={fields.n} are too many; at most {MAX_CHOICES} in all", "n")
    requests = _engine_requests(fields, text, caller, prompts, answer_id)
    rules = TextRules(fields.stops, fields.include_stop_str_in_output, continues_text=True)
    return CompletionPlan(Job(requests, rules), prompts, fields, text, answer_id, int(time.time()))


def _engine_requests(
    fields: CompletionRequest, text: ModelText, caller: Caller, prompts: tuple[Prompt, ...], answer_id: str
) -> tuple[GenerationRequest, ...]:
    # The engine draws at least one token; where none was asked for, that one isn't shown.
    asked, num_choices = (1, 1) if fields.max_tokens == 0 else (fields.max_tokens, fields.n)
    shown = Shown(answer=fields.logprobs, prompt=fields.logprobs if fields.echo else None)
    grammar = response_grammar(fields.response_format)
    requests = []
    for index, prompt in enumerate(prompts):
        max_tokens = answer_length(len(prompt.ids), asked, text.length_limit, "max_tokens")
        params = sampling_params(
            fields, max_tokens=max_tokens, vocab_size=text.info.vocab_size, shown=shown, grammar=grammar
        )
        request_id = f"{answer_id}-{index}"
        requests.append(
            GenerationRequest(
                request_id, prompt.ids, params, num_choices, caller.tenant, fields.priority, caller.arrival_seconds
            )
        )
    return tuple(requests)


class _Choice:
    """One choice as it grows; `take` gives what has come since the last time."""

    def __init__(self, plan: CompletionPlan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._prompt_index = index // plan.fields.n
        self._begun = False
        self._echoed_characters = 0
        self._text: list[str] = []
        self._finish_reason: str | None = None
        num_top = plan.fields.logprobs
        self._logprobs = None if num_top is None else CompletionLogprobs(plan.text.tokenizer, num_top)

    def add(self, delta: TextDelta, generation: Generation) -> None:
        self._begin(generation)
        self._text.append(delta.text)
        self._finish_reason = delta.finish_reason or self._finish_reason
        if self._logprobs is not None:
            for token in delta.tokens:
                self._logprobs.add(token.token_id, token.logprob, self._echoed_characters + token.text_offset)

    def end_without_tokens(self, generation: Generation) -> None:
        self._begin(generation)
        self._finish_reason = "length"

    def _begin(self, generation: Generation) -> None:
        if self._begun or not self._plan.fields.echo:
            return
        self._begun = True
        prompt = self._plan.prompts[self._prompt_index]
        self._text.append(prompt.text)
        self._echoed_characters = len(prompt.text)
        # The engine sends them with the prompt's first output, before any choice's.
        logprobs = generation.prompt_logprobs[self._prompt_index]
        if self._logprobs is not None and logprobs is not None:
            echoed_logprobs(self._logprobs, prompt, logprobs, self._plan.text.tokenizer)

    def take(self) -> Json:
        text = "".join(self._text)
        self._text = []
        return {
            "index": self._index,
            "text": text,
            "logprobs": None if self._logprobs is None else self._logprobs.take(),
            "finish_reason": self._finish_reason,
        }


async def _changes(
    plan: CompletionPlan, generation: Generation, choices: list[_Choice]
) -> AsyncGenerator[_Choice, None]:
    """Yield each choice when something was added to it."""
    async with contextlib.aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            if plan.generates:
                choices[piece.choice_index].add(piece.delta, generation)
                yield choices[piece.choice_index]
    if not plan.generates:
        for choice in choices:
            choice.end_without_tokens(generation)
            yield choice


def _usage(plan: CompletionPlan, generation: Generation) -> Usage:
    usage = generation.usage
    return usage if plan.generates else replace(usage, completion_tokens=0)


def _head(plan: CompletionPlan) -> Json:
    return {
        "id": plan.answer_id,
        "object": "text_completion",
        "created": plan.created,
        "model": plan.fields.model,
        "system_fingerprint": plan.text.fingerprint,
    }


async def _frames(service: Service, plan: CompletionPlan) -> AsyncGenerator[bytes, None]:
    head = _head(plan)
    with_usage = wants_usage(plan.fields)
    usage: Json = {"usage": None} if with_usage else {}
    choices = [_Choice(plan, index) for index in range(plan.num_choices)]
    async with (
        opened(plan.job, service.client, plan.text.tokenizer, service.figures) as generation,
        contextlib.aclosing(_changes(plan, generation, choices)) as changes,
    ):
        async for choice in changes:
            yield data_frame(head | {"choices": [choice.take()]} | usage)
        if with_usage:
            yield data_frame(head | {"choices": [], "usage": usage_object(_usage(plan, generation))})
        yield DONE
