"""Tool calls are found in streaming text, and what is no call stays text, wherever the text is cut."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_runtime.text.tool_calls import ParsedText, ToolCallParser

NAMES = ("f", "weather")
Call = tuple[str, str]

# text, forced, the text outside calls, the calls
CASES: list[tuple[str, bool, str, list[Call]]] = [
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', False, "", [("f", '{"a": 1}')]),
    (
        'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n'
        '<tool_call>{"arguments": {"x": [1, {"y": 2}]}, "name": "weather"}</tool_call>\n',
        False,
        "Let me see.",
        [("f", "{}"), ("weather", '{"x": [1, {"y": 2}]}')],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "}\\"</tool_call>"}}</tool_call> done',
        False,
        " done",
        [("f", '{"a": "}\\"</tool_call>"}')],
    ),
    ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', False, "", [("unknown", "{}")]),
    ('<tool_call>{"name": "f"}</tool_call>', False, "", [("f", "{}")]),
    (
        '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}<tool_call>{"name":"f","arguments":null}',
        False,
        "",
        [("f", '{"a":1}'), ("f", "{}")],
    ),
    ('{"name": "weather", "parameters": {"q": 1}}', False, "", [("weather", '{"q": 1}')]),
    ('{"name":"f","parameters":{}}; {"type":"function","name":"f","parameters":{}}', False, "", [("f", "{}")] * 2),
    ('[{"name":"f","arguments":{"a":1}}, {"name":"f","arguments":{}}]', True, "", [("f", '{"a":1}'), ("f", "{}")]),
    ('{"name": "f", "arguments": {"a": "b c"}}', True, "", [("f", '{"a": "b c"}')]),
    # cut short by the length
    ('<tool_call>{"name": "f", "arguments": {"a": 1', False, "", [("f", '{"a": 1')]),
    ('{"name": "f", "arguments": {"a', True, "", [("f", '{"a')]),
    ('[{"na', True, '[{"na', []),
    ("a <tool_cal", False, "a <tool_cal", []),
    ('<tool_call>{"na', False, '<tool_call>{"na', []),
    # no calls
    ("just text,  with spaces \n", False, "just text,  with spaces \n", []),
    ('{"name": "Bob", "age": 3}', False, '{"name": "Bob", "age": 3}', []),
    ('{"name": "f", "age": 3}', False, '{"name": "f", "age": 3}', []),
    ('{"name": "f"}', False, '{"name": "f"}', []),
    (' {"city": "Bern"}', False, ' {"city": "Bern"}', []),
    ('So: {"name": "f", "arguments": {}}', False, 'So: {"name": "f", "arguments": {}}', []),
    ("<tool_call>oops</tool_call>", False, "<tool_call>oops</tool_call>", []),
    ('<tool_call>{"name": 5}</tool_call>', False, '<tool_call>{"name": 5}</tool_call>', []),
    ("a < b <tool <tool_bar>", False, "a < b <tool <tool_bar>", []),
    ("", False, "", []),
]


def parsed(text: str, forced: bool, edges: list[int]) -> list[ParsedText]:
    parser = ToolCallParser(NAMES, forced=forced)
    pieces = [text[start:end] for start, end in zip([0, *edges], [*edges, len(text)], strict=True)]
    deltas = [*map(parser.push, pieces), parser.finish()]
    assert parser.num_calls == len({call.index for delta in deltas for call in delta.calls})
    return [delta for delta in deltas if delta]


def text_and_calls(deltas: list[ParsedText]) -> tuple[str, list[Call]]:
    pieces = [call for delta in deltas for call in delta.calls]
    calls = [
        (
            "".join(piece.name for piece in pieces if piece.index == index and piece.name),
            "".join(piece.arguments for piece in pieces if piece.index == index),
        )
        for index in sorted({piece.index for piece in pieces})
    ]
    return "".join(delta.text for delta in deltas), calls


@pytest.mark.parametrize(("text", "forced", "outside", "calls"), CASES, ids=[case[0][:40] for case in CASES])
def test_text_and_calls_are_told_apart_wherever_the_text_is_cut(
    text: str, forced: bool, outside: str, calls: list[Call]
) -> None:
    @given(edges=st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    def check(edges: list[int]) -> None:
        assert text_and_calls(parsed(text, forced, edges)) == (outside, calls)

    check()
    assert text_and_calls(parsed(text, forced, list(range(1, len(text) + 1)))) == (outside, calls)


def test_id_and_name_come_once_in_the_calls_first_piece_and_arguments_as_they_are_written() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"city": "Bern"}}</tool_call>'
    pieces = [call for delta in parsed(text, False, list(range(1, len(text) + 1))) for call in delta.calls]
    assert re.fullmatch(r"call_[0-9a-f]{24}", str(pieces[0].call_id))
    assert (pieces[0].name, pieces[0].arguments) == ("f", "")
    assert all(piece.call_id is None and piece.name is None for piece in pieces[1:])
    assert [piece.arguments for piece in pieces[1:4]] == ["{", '"', "c"]


def test_calls_have_different_ids() -> None:
    text = '[{"name":"f","arguments":{}},{"name":"f","arguments":{}}]'
    pieces = [call for delta in parsed(text, True, []) for call in delta.calls]
    assert len({piece.call_id for piece in pieces if piece.call_id}) == 2


def test_text_that_cant_become_a_tag_isnt_held_back() -> None:
    parser = ToolCallParser(NAMES)
    assert [parser.push(piece).text for piece in ("a", " b", " <", "i>", " c")] == ["a", " b", "", " <i>", " c"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    arguments=st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3),
    ascii_only=st.booleans(),
    edges=st.lists(st.integers(0, 60), max_size=6),
    plain=st.booleans(),
)
def test_any_arguments_come_through_as_they_were_written(
    arguments: dict[str, object], ascii_only: bool, edges: list[int], plain: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = f'{{"name": "f", "arguments": {written}}}'
    text = text if plain else f"<tool_call>\n{text}\n</tool_call>"
    cuts = sorted(min(edge, len(text)) for edge in edges)
    assert text_and_calls(parsed(text, False, cuts)) == ("", [("f", written)])


@given(text=st.text(alphabet='<tool_call>/{}":[],;nameargumentsf\\ \n1', max_size=40), forced=st.booleans())
def test_no_text_makes_the_parser_fail(text: str, forced: bool) -> None:
    once = text_and_calls(parsed(text, forced, []))
    assert text_and_calls(parsed(text, forced, list(range(1, len(text) + 1)))) == once
