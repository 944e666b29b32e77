"""What response_format and tool_choice ask for becomes a grammar, or is refused with the field's name."""

import json
from typing import Any

import jsonschema
import pytest

from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.request import Grammar
from pagefleet_runtime.text.constraints import checked_tools, response_grammar, tool_grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool(name: str = "f", **function: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def json_schema(**fields: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, **fields}}


def wide(count: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": {f"p{i}": {} for i in range(count)}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def allows(grammar: Grammar | None, answer: object) -> bool:
    assert grammar is not None
    return bool(jsonschema.Draft202012Validator(json.loads(grammar.text)).is_valid(answer))


def test_text_and_nothing_are_no_grammar() -> None:
    assert response_grammar(None) is None
    assert response_grammar({"type": "text"}) is None


def test_json_object_allows_any_object_and_nothing_else() -> None:
    grammar = response_grammar({"type": "json_object"})
    assert allows(grammar, {"x": [1]}) and not allows(grammar, [1])


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_json_schema_is_enforced_whole_strict_or_not(strict: bool | None) -> None:
    grammar = response_grammar(json_schema(strict=strict))
    assert grammar == Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))


def test_a_json_schema_without_a_schema_is_any_object() -> None:
    assert response_grammar(json_schema(schema=None)) == response_grammar({"type": "json_object"})


@pytest.mark.parametrize(
    ("response_format", "param", "reason"),
    [
        ("json", "response_format", "must be an object"),
        ({"type": "xml"}, "response_format.type", "'xml'"),
        ({"type": "json_schema"}, "response_format.json_schema", "name and schema"),
        (json_schema(name="a b"), "response_format.json_schema.name", "'a b'"),
        (json_schema(schema=[]), "response_format.json_schema.schema", "is an object"),
        (json_schema(schema=nested(65)), "response_format.json_schema.schema", "nested 65 deep; the most is 64"),
        (json_schema(schema=nested(5000)), "response_format.json_schema.schema", "nested 5000 deep"),
        (json_schema(schema=wide(401)), "response_format.json_schema.schema", "401 properties; the most is 400"),
        (json_schema(schema={"const": "x" * 65536}), "response_format.json_schema.schema", "the most is 65536"),
    ],
)
def test_a_wrong_response_format_is_refused_with_its_field(response_format: object, param: str, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason) as refused:
        response_grammar(response_format)
    assert (refused.value.refusal.status, refused.value.refusal.param) == (400, param)


def test_a_schema_at_the_limit_of_depth_is_taken() -> None:
    assert response_grammar(json_schema(schema=nested(64))) is not None


def test_tools_give_their_names_in_order() -> None:
    assert checked_tools(None) == ()
    assert checked_tools([tool("b", parameters=SCHEMA), tool("a")]) == ("b", "a")


@pytest.mark.parametrize(
    ("tools", "param", "reason"),
    [
        ("x", "tools", "must be a list"),
        ([tool()] * 129, "tools", "at most 128"),
        ([tool(), {"type": "custom"}], r"tools[1].type", "'custom'"),
        (["x"], "tools[0].type", "absent"),
        ([{"type": "function"}], "tools[0].function", "must be an object"),
        ([tool("no spaces please")], "tools[0].function.name", "letters"),
        ([tool(), tool()], "tools", "'f' again"),
        ([tool(parameters=[])], "tools[0].function.parameters", "is an object"),
        ([tool(parameters=nested(100))], "tools[0].function.parameters", "nested 100 deep"),
        ([tool(description=nested(5000))], "tools[0]", "nested deeper than 66"),
    ],
)
def test_wrong_tools_are_refused_with_their_field(tools: object, param: str, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason) as refused:
        checked_tools(tools)
    assert (refused.value.refusal.status, refused.value.refusal.param) == (400, param)


@pytest.mark.parametrize("tool_choice", [None, "auto", "none"])
def test_a_free_choice_is_no_grammar(tool_choice: str | None) -> None:
    assert tool_grammar([tool()], tool_choice) is None


def test_required_makes_a_list_of_calls_of_any_tool() -> None:
    grammar = tool_grammar([tool("f", parameters=SCHEMA), tool("g")], "required")
    f, g = {"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}
    assert allows(grammar, [f, g]) and allows(grammar, [g])
    assert not allows(grammar, []) and not allows(grammar, f) and not allows(grammar, [g] * 9)
    assert not allows(grammar, [{"name": "f", "arguments": {}}])
    assert not allows(grammar, [{"name": "g", "arguments": {"a": 1}}])


def test_required_without_parallel_calls_makes_one_call() -> None:
    grammar = tool_grammar([tool("f"), tool("g")], "required", parallel=False)
    assert allows(grammar, {"name": "g", "arguments": {}}) and not allows(grammar, {"name": "h", "arguments": {}})


@pytest.mark.parametrize("parallel", [True, False])
def test_a_named_function_is_called_once(parallel: bool) -> None:
    choice = {"type": "function", "function": {"name": "g"}}
    grammar = tool_grammar([tool("f"), tool("g")], choice, parallel=parallel)
    assert allows(grammar, {"name": "g", "arguments": {}}) and not allows(grammar, {"name": "f", "arguments": {}})


def test_references_inside_a_tools_schema_go_on_to_mean_the_same() -> None:
    parameters = {
        "properties": {"a": {"$ref": "#/$defs/Z"}, "next": {"$ref": "#"}},
        "$defs": {"Z": {"type": "integer"}},
    }
    grammar = tool_grammar([tool("f", parameters=parameters)], "required", parallel=False)
    assert allows(grammar, {"name": "f", "arguments": {"a": 1, "next": {"a": 2}}})
    assert not allows(grammar, {"name": "f", "arguments": {"next": {"a": "x"}}})


@pytest.mark.parametrize(
    ("tools", "tool_choice", "reason"),
    [
        ([], "required", "no tools"),
        ([tool()], {"type": "function", "function": {"name": "g"}}, "'g'; the request's tools are: f"),
        ([], {"type": "function", "function": {"name": "g"}}, "are: none"),
        ([tool()], "always", "always"),
        ([tool()], {"type": "function"}, "must be 'auto'"),
    ],
)
def test_a_wrong_tool_choice_is_refused(tools: list[dict[str, Any]], tool_choice: object, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason) as refused:
        tool_grammar(tools, tool_choice)
    assert (refused.value.refusal.status, refused.value.refusal.param) == (400, "tool_choice")
