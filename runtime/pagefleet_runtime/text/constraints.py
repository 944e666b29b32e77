"""Which grammar a request's response_format or tool_choice asks for."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.request import Grammar
from pagefleet_runtime.text.nesting import most_properties, nesting_depth

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64
# The grammar engine allows 2,000 states at a place; an optional property takes four.
MAX_PROPERTIES = 400
MAX_TOOLS = 128
MAX_PARALLEL_CALLS = 8
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANY_OBJECT = '{"type":"object"}'
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


def response_grammar(response_format: object) -> Grammar | None:
    """Return the grammar of `response_format` (null, text, json_object, json_schema), as JSON from the client.

    A schema is enforced whole, `strict` or not. Raises RequestRefused (400, with param). Whether the schema can be
    compiled is found by the engine.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise invalid("response_format must be an object with a type", "response_format")
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_object", _ANY_OBJECT)
    if kind != "json_schema":
        raise invalid(
            f"response_format.type is {kind!r}; it must be 'text', 'json_object' or 'json_schema'",
            "response_format.type",
        )
    param = "response_format.json_schema"
    described = response_format.get("json_schema")
    if not isinstance(described, Mapping):
        raise invalid(f"{param} must be an object with name and schema", param)
    _check_name(described.get("name"), f"{param}.name")
    schema = described.get("schema")
    if schema is None:
        return Grammar("json_object", _ANY_OBJECT)
    return Grammar("json_schema", _schema_text(schema, f"{param}.schema"))


def checked_tools(tools: object) -> tuple[str, ...]:
    """Check a request's tools (null or a list) and return their names in order. Raises RequestRefused (400, with
    param)."""
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str) or len(tools) > MAX_TOOLS:
        raise invalid(f"tools must be a list of at most {MAX_TOOLS} tools", "tools")
    names: list[str] = []
    for index, tool in enumerate(tools):
        name = _checked_tool(tool, f"tools[{index}]")
        if name in names:
            raise invalid(f"tools[{index}].function.name is {name!r} again; names must differ", "tools")
        names.append(name)
    return tuple(names)


def _checked_tool(tool: object, where: str) -> str:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        found = repr(tool.get("type")) if isinstance(tool, Mapping) else "absent"
        raise invalid(f"{where}.type is {found}; only tools of type 'function' are supported", f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise invalid(f"{where}.function must be an object with a name", f"{where}.function")
    if function.get("parameters") is not None:
        _schema_text(function["parameters"], f"{where}.function.parameters")
    if nesting_depth(tool) > MAX_SCHEMA_DEPTH + 2:
        raise invalid(f"{where} is nested deeper than {MAX_SCHEMA_DEPTH + 2}, outside its parameters", where)
    return _check_name(function.get("name"), f"{where}.function.name")


def tool_grammar(
    tools: Sequence[Mapping[str, Any]], tool_choice: object = None, *, parallel: bool = True
) -> Grammar | None:
    """Return the grammar that makes the answer tool calls, or None where the model is free (auto, none).

    `tools` have passed `checked_tools`; `tool_choice` is the client's: null, auto, none, required, or an object that
    names a function. With a grammar, use `ToolCallParser(forced=True)`. A named function is called once; `required`
    with `parallel` calls up to 8 times. Raises RequestRefused (400, with param).
    """
    if tool_choice is None or tool_choice in ("auto", "none"):
        return None
    chosen = list(tools) if tool_choice == "required" else [_named(tools, tool_choice)]
    if not chosen:
        raise invalid("tool_choice is 'required', but the request has no tools; add tools", "tool_choice")
    calls = [_call_schema(tool["function"]["name"], f"#/$defs/tool_{index}") for index, tool in enumerate(chosen)]
    schema: dict[str, object] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if parallel and tool_choice == "required":
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": MAX_PARALLEL_CALLS}
    definitions = {
        f"tool_{index}": _moved(_parameters(tool), f"#/$defs/tool_{index}") for index, tool in enumerate(chosen)
    }
    return Grammar("json_schema", _schema_text({**schema, "$defs": definitions}, "tools"))


def _named(tools: Sequence[Mapping[str, Any]], tool_choice: object) -> Mapping[str, Any]:
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    if not isinstance(function, Mapping):
        raise invalid(
            f"tool_choice is {json.dumps(tool_choice)[:100]}; it must be 'auto', 'none', 'required' or "
            '{"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    name = function.get("name")
    found = next((tool for tool in tools if tool["function"]["name"] == name), None)
    if found is None:
        known = ", ".join(str(tool["function"]["name"]) for tool in tools) or "none"
        raise invalid(f"tool_choice names the function {name!r}; the request's tools are: {known}", "tool_choice")
    return found


def _call_schema(name: str, parameters: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": parameters}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, object]:
    parameters = tool["function"].get("parameters")
    return _NO_PARAMETERS if parameters is None else {"type": "object", **parameters}


def _moved(schema: object, root: str) -> object:
    """Return the schema with its references to its own root (#, #/…) turned into references to `root`."""
    if isinstance(schema, list):
        return [_moved(one, root) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: root + value[1:] if key == "$ref" and isinstance(value, str) and value[:1] == "#" else _moved(value, root)
        for key, value in schema.items()
    }


def _schema_text(schema: object, param: str) -> str:
    if not isinstance(schema, Mapping):
        raise invalid(f"{param} must be a JSON schema, which is an object", param, "invalid_json_schema")
    depth = nesting_depth(schema)
    if depth > MAX_SCHEMA_DEPTH:
        raise _too_large(param, f"is nested {depth} deep", f"{MAX_SCHEMA_DEPTH}")
    properties = most_properties(schema)
    if properties > MAX_PROPERTIES:
        raise _too_large(param, f"has an object of {properties} properties", f"{MAX_PROPERTIES}")
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode("utf-8", errors="surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise _too_large(param, f"has {size} bytes as JSON", f"{MAX_SCHEMA_BYTES}")
    return text


def _too_large(param: str, found: str, most: str) -> RequestRefused:
    return invalid(f"{param} {found}; the most is {most}; simplify the schema", param, "invalid_json_schema")


def _check_name(name: object, param: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{param} is {name!r}; it must be 1 to 64 letters, digits, underscores or dashes", param)
    return name
