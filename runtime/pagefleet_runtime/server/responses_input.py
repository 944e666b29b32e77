"""The Responses API's own words in chat's: items become messages, flat tools and formats become nested ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.server.openai_requests import ResponsesRequest

Json = dict[str, Any]

_TEXT_PARTS = ("input_text", "output_text", "text")
_LOGPROBS = "message.output_text.logprobs"
# Asks for what never exists here; sent by clients as a matter of course.
_EMPTY_INCLUDES = ("reasoning.encrypted_content",)


def messages_of(fields: ResponsesRequest) -> list[Json]:
    """Return the conversation as chat messages. Raises RequestRefused (400) that names the item."""
    messages: list[Json] = [] if fields.instructions is None else [{"role": "system", "content": fields.instructions}]
    if isinstance(fields.input, str):
        return [*messages, {"role": "user", "content": fields.input}]
    for index, item in enumerate(fields.input):
        _add_item(messages, item, f"input.{index}")
    return messages


def _add_item(messages: list[Json], item: Json, where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": _content(item.get("content"), f"{where}.content")})
    elif kind == "function_call":
        _add_call(messages, item, where)
    elif kind == "function_call_output":
        output = _content(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", where), "content": output})
    elif kind != "reasoning":  # models here keep no reasoning between turns; what others kept is left out
        raise _unsupported(f"{where} has the type '{kind!s:.60}'; messages and function calls are served", where)


def _add_call(messages: list[Json], item: Json, where: str) -> None:
    function = {"name": _text(item, "name", where), "arguments": _text(item, "arguments", where)}
    call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
    # Calls of one turn are one message, together with what the assistant said before them.
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _text(item: Json, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name} must be a string", f"{where}.{name}")
    return value


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content  # a text; anything else is refused with the message's index
    parts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal")})
        elif kind in _TEXT_PARTS:
            parts.append({"type": "text", "text": part.get("text")})
        else:
            raise _unsupported(f"{where}.{index} has the type '{kind!s:.60}'; only text is served", f"{where}.{index}")
    return parts


def _unsupported(message: str, param: str) -> RequestRefused:
    return invalid(message, param, "unsupported_parameter")


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return function tools as chat has them. Raises RequestRefused (400) for built-in tools."""
    nested = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            message = f"tools.{index} has the type '{tool.get('type')!s:.60}'; only function tools are served"
            raise _unsupported(message, f"tools.{index}.type")
        names = ("name", "description", "parameters", "strict")
        nested.append({"type": "function", "function": {n: tool[n] for n in names if tool.get(n) is not None}})
    return nested


def chat_tool_choice(choice: str | Json) -> str | Json:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def chat_format(text: Json) -> Json | None:
    """Return `text.format` as chat's response_format. What is wrong in it is found where chat's is checked."""
    asked = text.get("format")
    if asked is None or not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return asked
    return {"type": "json_schema", "json_schema": {name: asked[name] for name in asked if name != "type"}}


def wants_logprobs(fields: ResponsesRequest) -> bool:
    """Say whether `include` asks for logprobs. Raises RequestRefused (400) for what can't be included."""
    for name in fields.include:
        if name != _LOGPROBS and name not in _EMPTY_INCLUDES:
            message = f"include holds '{name[:100]}'; only {_LOGPROBS} is served"
            raise _unsupported(message, "include")
    return _LOGPROBS in fields.include
