"""One trial for every parameter of OpenAI's three requests, and for our extras: what is sent, and what proves that it
was honoured. What the treatment of a parameter is stands in `treatment.py`, not here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.server.openai_requests import ChatRequest, CompletionRequest, ResponsesRequest, SamplingFields
from pagefleet_runtime.server.treatment import CHAT, COMPLETIONS, RESPONSES, Parameters


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a request: the answer, and what the engine was asked for."""

    response: httpx2.Response
    request: GenerationRequest | None

    @property
    def params(self) -> Any:
        assert self.request is not None
        return self.request.params

    @property
    def prompt(self) -> bytes:
        assert self.request is not None
        return bytes(token for token in self.request.prompt_ids if token < 256)


@dataclass(frozen=True, slots=True)
class Trial:
    value: Any
    proof: Callable[[Seen], bool] = lambda seen: False
    beside: dict[str, Any] = field(default_factory=dict)
    says: str = "Hello"


@dataclass(frozen=True, slots=True)
class Endpoint:
    parameters: Parameters
    model: type[SamplingFields]
    openai: type
    base: dict[str, Any]
    trials: dict[str, Trial]

    @property
    def openai_names(self) -> tuple[str, ...]:
        """The parameters that OpenAI's own client knows; `stream` stands in variants of the type."""
        return tuple(sorted({*self.openai.__annotations__, "stream"}))

    @property
    def names(self) -> tuple[str, ...]:
        """OpenAI's parameters, then ours."""
        extras = sorted(self.parameters.supported - set(self.openai_names))
        return (*self.openai_names, *extras)


def _content(seen: Seen) -> Any:
    return seen.response.json()["choices"][0]["message"]["content"]


_SAMPLING = {
    "model": Trial("other", lambda seen: seen.response.status_code == 404),
    "temperature": Trial(0.25, lambda seen: seen.params.temperature == 0.25),
    "top_p": Trial(0.5, lambda seen: seen.params.top_p == 0.5),
    "top_k": Trial(7, lambda seen: seen.params.top_k == 7),
    "min_p": Trial(0.1, lambda seen: seen.params.min_p == 0.1),
    "seed": Trial(-5, lambda seen: seen.params.seed == 2**64 - 5),
    "presence_penalty": Trial(0.5, lambda seen: seen.params.presence_penalty == 0.5),
    "frequency_penalty": Trial(-0.5, lambda seen: seen.params.frequency_penalty == -0.5),
    "repetition_penalty": Trial(1.5, lambda seen: seen.params.repetition_penalty == 1.5),
    "logit_bias": Trial({"65": 5, "66": -100}, lambda seen: seen.params.logit_bias == ((65, 5.0), (66, -100.0))),
    "stop": Trial("ll", lambda seen: "He" in seen.response.text and "Hello" not in seen.response.text),
    "stop_token_ids": Trial([70], lambda seen: seen.params.stop_token_ids == (70,)),
    "include_stop_str_in_output": Trial(True, lambda seen: '"Hel"' in seen.response.text, {"stop": "l"}),
    "ignore_eos": Trial(True, lambda seen: seen.params.ignore_eos is True),
    "priority": Trial(-3, lambda seen: seen.request is not None and seen.request.priority == -3),
    "stream": Trial(True, lambda seen: seen.response.headers["content-type"].startswith("text/event-stream")),
}
_STREAM_USAGE = Trial(
    {"include_usage": True}, lambda seen: '"choices":[],"usage"' in seen.response.text, {"stream": True}
)
_N = Trial(2, lambda seen: [choice["index"] for choice in seen.response.json()["choices"]] == [0, 1])

_IGNORED = {
    "user": Trial("u-1"),
    "metadata": Trial({"a": "b"}),
    "store": Trial(True),
    "service_tier": Trial("priority"),
    "safety_identifier": Trial("s-1"),
    "prompt_cache_key": Trial("k"),
    "prompt_cache_options": Trial({"ttl": "30m"}),
    "prompt_cache_retention": Trial("24h"),
}

_JSON = Trial({"type": "json_object"}, lambda seen: seen.params.grammar is not None)
_CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}

_CHAT = _SAMPLING | _IGNORED | {
    "messages": Trial([{"role": "user", "content": "Salut"}], lambda seen: b"Salut" in seen.prompt),
    "n": _N,
    "max_tokens": Trial(2, lambda seen: _content(seen) == "He"),
    "max_completion_tokens": Trial(3, lambda seen: _content(seen) == "Hel"),
    "logprobs": Trial(True, lambda seen: seen.response.text.count('"logprob":-0.5') == 5),
    "top_logprobs": Trial(4, lambda seen: seen.params.top_logprobs == 4, {"logprobs": True}),
    "response_format": _JSON,
    "stream_options": _STREAM_USAGE,
    "tools": Trial([_TOOL], lambda seen: '"name":"f"' in seen.response.text, says=_CALL),
    "tool_choice": Trial("required", lambda seen: seen.params.grammar is not None, {"tools": [_TOOL]}, _CALL),
    "parallel_tool_calls": Trial(
        False, lambda seen: seen.response.text.count('"name":"f"') == 1, {"tools": [_TOOL]}, _CALL + _CALL
    ),
    "chat_template_kwargs": Trial({"enable_thinking": False}, lambda seen: seen.prompt.endswith(b"<think></think>")),
    "reasoning_effort": Trial("low"),
    "verbosity": Trial("low"),
    "audio": Trial({"voice": "alloy", "format": "wav"}),
    "modalities": Trial(["text", "audio"]),
    "functions": Trial([{"name": "f"}]),
    "function_call": Trial({"name": "f"}),
    "prediction": Trial({"type": "content", "content": "x"}),
    "web_search_options": Trial({}),
    "moderation": Trial({"model": "m"}),
}  # fmt: skip

_COMPLETIONS = _SAMPLING | _IGNORED | {
    "prompt": Trial("Salut", lambda seen: seen.prompt == b"Salut"),
    "n": _N,
    "best_of": Trial(3, lambda seen: seen.response.status_code == 400),
    "max_tokens": Trial(2, lambda seen: seen.response.json()["choices"][0]["text"] == "He"),
    "logprobs": Trial(3, lambda seen: '"tokens":["H","e","l","l","o"]' in seen.response.text),
    "echo": Trial(True, lambda seen: seen.response.json()["choices"][0]["text"] == "HiHello"),
    "response_format": _JSON,
    "stream_options": _STREAM_USAGE,
    "suffix": Trial("the end"),
}  # fmt: skip

_RESPONSES = _SAMPLING | _IGNORED | {
    "input": Trial("Salut", lambda seen: b"Salut" in seen.prompt),
    "instructions": Trial("Be brief.", lambda seen: b"system\nBe brief." in seen.prompt),
    "max_output_tokens": Trial(2, lambda seen: seen.response.json()["status"] == "incomplete"),
    "include": Trial(
        ["message.output_text.logprobs"],
        lambda seen: len(seen.response.json()["output"][0]["content"][0]["logprobs"]) == 5,
    ),
    "top_logprobs": Trial(
        4, lambda seen: seen.params.top_logprobs == 4, {"include": ["message.output_text.logprobs"]}
    ),
    "text": Trial({"format": {"type": "json_object"}}, lambda seen: seen.params.grammar is not None),
    # In a response it only speaks of padding, which there is none of; but it is checked.
    "stream_options": Trial({}, lambda seen: seen.response.status_code == 400),
    "tools": Trial([_FLAT_TOOL], lambda seen: '"type":"function_call"' in seen.response.text, says=_CALL),
    "tool_choice": Trial("required", lambda seen: seen.params.grammar is not None, {"tools": [_FLAT_TOOL]}, _CALL),
    "parallel_tool_calls": Trial(
        False,
        lambda seen: seen.response.text.count('"type":"function_call"') == 1,
        {"tools": [_FLAT_TOOL]},
        _CALL + _CALL,
    ),
    "reasoning": Trial({"effort": "low"}),
    "max_tool_calls": Trial(3),
    "image": Trial({"context_compression": "auto"}),
    "previous_response_id": Trial("resp_1"),
    "conversation": Trial("conv_1"),
    "background": Trial(True),
    "background_options": Trial({"completion_window": "2h"}),
    "prompt": Trial({"id": "pmpt_1"}),
    "truncation": Trial("auto"),
    "context_management": Trial([{"type": "compaction"}]),
    "moderation": Trial({"model": "m"}),
    "access_programs": Trial({"cyber": "standard"}),
}  # fmt: skip

ENDPOINTS = {
    "chat": Endpoint(
        CHAT,
        ChatRequest,
        chat_create_params.CompletionCreateParamsBase,
        {"messages": [{"role": "user", "content": "Hi"}]},
        _CHAT,
    ),
    "completions": Endpoint(
        COMPLETIONS,
        CompletionRequest,
        completion_create_params.CompletionCreateParamsBase,
        {"prompt": "Hi"},
        _COMPLETIONS,
    ),
    "responses": Endpoint(
        RESPONSES, ResponsesRequest, response_create_params.ResponseCreateParamsBase, {"input": "Hi"}, _RESPONSES
    ),
}
LINES = tuple((key, name) for key, endpoint in ENDPOINTS.items() for name in endpoint.names)
# What is refused and is neither OpenAI's nor ours.
FOREIGN = tuple(
    (key, name)
    for key, endpoint in ENDPOINTS.items()
    for name in sorted(set(endpoint.parameters.rejected) - set(endpoint.names))
)
