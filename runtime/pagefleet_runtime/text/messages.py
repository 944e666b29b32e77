"""A client's chat messages, checked and brought into the shape that chat templates read."""

import json
from collections.abc import Mapping, Sequence

from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.text.nesting import nesting_depth

_MAX_ARGUMENTS_DEPTH = 64

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def template_message(message: object, index: int) -> dict[str, object]:
    """Return message number `index` with only what templates read: role, content as one string, name, tool_call_id,
    reasoning_content, and tool_calls with their arguments as objects. Raises RequestRefused (400)."""
    if not isinstance(message, Mapping):
        raise _refused(index, "", f"is {_kind(message)}; it must be an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise _refused(index, ".role", f"is {role!r}; it must be one of {', '.join(ROLES)}")
    shaped: dict[str, object] = {"role": role, "content": _content(message.get("content"), role, index)}
    for key in ("name", "tool_call_id", "reasoning_content"):
        value = message.get(key)
        if value is not None:
            shaped[key] = _string(value, index, f".{key}")
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant":
            raise _refused(index, ".tool_calls", f"stands in a message of role {role}; only assistant messages call")
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise _refused(index, ".tool_calls", f"is {_kind(calls)}; it must be a list")
        shaped["tool_calls"] = [_tool_call(call, index, f".tool_calls[{place}]") for place, call in enumerate(calls)]
    return shaped


def _content(content: object, role: str, index: int) -> str:
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refused(index, ".content", f"is {_kind(content)}; it must be a string or a list of text parts")
    if not content:
        raise _refused(index, ".content", "is an empty list; it must have at least one text part")
    return "\n".join(_part(part, index, f".content[{place}]") for place, part in enumerate(content))


def _part(part: object, index: int, where: str) -> str:
    if not isinstance(part, Mapping):
        raise _refused(index, where, f"is {_kind(part)}; it must be an object with type and text")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise _refused(index, f"{where}.type", f"is {kind!r}; this model reads text only, so it must be 'text'")
    key = _TEXT_PARTS[kind]
    return _string(part.get(key), index, f"{where}.{key}")


def _tool_call(call: object, index: int, where: str) -> dict[str, object]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _refused(index, where, "must be an object with id, type 'function' and function")
    name = _string(function.get("name"), index, f"{where}.function.name")
    arguments = _arguments(function.get("arguments", ""), index, f"{where}.function.arguments")
    shaped: dict[str, object] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    call_id = call.get("id")
    return shaped if call_id is None else {"id": _string(call_id, index, f"{where}.id"), **shaped}


def _arguments(arguments: object, index: int, where: str) -> object:
    """Return arguments as the object that templates expect; a text that is no JSON object, or one nested beyond reason
    (a model's own mistake, sent back), stays a text."""
    text = _string(arguments, index, where)
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and nesting_depth(value) <= _MAX_ARGUMENTS_DEPTH else text


def _string(value: object, index: int, where: str) -> str:
    if not isinstance(value, str):
        raise _refused(index, where, f"is {_kind(value)}; it must be a string")
    return value


def _refused(index: int, where: str, reason: str) -> RequestRefused:
    return invalid(f"messages[{index}]{where} {reason}", f"messages[{index}]{where}")


def _kind(value: object) -> str:
    kinds = {type(None): "absent or null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")
