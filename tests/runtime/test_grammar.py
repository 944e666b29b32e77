"""Masks allow what the grammar allows, and nothing more; forks are independent; limits and mistakes are told apart."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.grammar import GrammarCompiler, GrammarFault, Matcher
from pagefleet_runtime.grammar_cache import GrammarCache
from pagefleet_runtime.model_executor.mask_filling import MaskFiller, load_grammar_tokenizer
from pagefleet_runtime.request import Grammar
from pagefleet_runtime.text.constraints import MAX_PROPERTIES, response_grammar, tool_grammar
from tests.runtime.tiny_tokenizer import EOS_ID, PAD_ID, write_tiny_tokenizer

MODEL_VOCABULARY = 275  # more than the tokenizer's, and no multiple of 8 or 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(path, merged=(("a", "b"),))
    return path


@pytest.fixture(scope="module")
def compiler(directory: Path) -> GrammarCompiler:
    ends = (EOS_ID, PAD_ID)
    return GrammarCompiler(load_grammar_tokenizer(directory, MODEL_VOCABULARY, ends), ends)


def schema(**fields: object) -> Grammar:
    return Grammar("json_schema", json.dumps(fields))


def masks(compiler: GrammarCompiler, *matchers: Matcher) -> NDArray[np.bool_]:
    allowed = MaskFiller(MODEL_VOCABULARY).fill(matchers, compiler.tokenizer_size)
    assert allowed.shape == (len(matchers), MODEL_VOCABULARY)
    return allowed


def allowed_ids(compiler: GrammarCompiler, matcher: Matcher) -> set[int]:
    """Return what the mask allows, the same whichever way it is asked for."""
    bits = matcher.fork().allowed_bits()
    found = set(np.flatnonzero(masks(compiler, matcher)[0]).tolist())
    assert found == {i for i in range(MODEL_VOCABULARY) if bits[i // 8] >> i % 8 & 1}
    return found


def consume_text(matcher: Matcher, text: str) -> None:
    for byte in text.encode():
        matcher.consume(byte)


def follows(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """Say whether every token of `text` is allowed in turn, and the end after it."""
    matcher = compiler.compile(grammar)
    for byte in text.encode():
        if byte not in allowed_ids(compiler, matcher):
            return False
        matcher.consume(byte)
    return EOS_ID in allowed_ids(compiler, matcher)


def test_the_mask_allows_what_may_follow_and_no_control_token(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("regex", "a[b-d]"))
    assert allowed_ids(compiler, matcher) == {ord("a"), 260}  # 260 is ab
    matcher.consume(ord("a"))
    assert allowed_ids(compiler, matcher) == {ord("b"), ord("c"), ord("d")}


def test_every_end_token_is_allowed_once_the_grammar_accepts(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("regex", "[0-9]+"))
    assert not matcher.can_end and not {EOS_ID, PAD_ID} & allowed_ids(compiler, matcher)
    matcher.consume(ord("7"))
    assert matcher.can_end and not matcher.is_finished
    assert {EOS_ID, PAD_ID, ord("8")} <= allowed_ids(compiler, matcher)
    matcher.consume(PAD_ID)
    assert matcher.is_finished


def test_a_complete_grammar_allows_an_end_only(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("regex", "ab"))
    matcher.consume(260)
    assert matcher.is_finished and matcher.can_end and matcher.error is None
    assert allowed_ids(compiler, matcher) == {EOS_ID, PAD_ID}
    matcher.consume(EOS_ID)
    with pytest.raises(GrammarFault, match="complete"):
        matcher.consume(ord("a"))


def test_a_token_that_isnt_allowed_is_a_fault_of_that_choice(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("regex", "ab"))
    with pytest.raises(GrammarFault, match="token 120"):
        matcher.consume(ord("x"))
    assert not matcher.is_finished and not matcher.can_end
    assert matcher.error is not None and "<state>" not in matcher.error


def test_a_broken_matcher_doesnt_disturb_the_masks_of_others(compiler: GrammarCompiler) -> None:
    broken, whole = compiler.compile(Grammar("regex", "ab")), compiler.compile(Grammar("regex", "[xy]"))
    with pytest.raises(GrammarFault):
        broken.consume(ord("x"))
    allowed = masks(compiler, broken, whole)
    assert set(np.flatnonzero(allowed[1]).tolist()) == {ord("x"), ord("y")}


def test_no_matchers_have_no_masks(compiler: GrammarCompiler) -> None:
    assert masks(compiler).shape == (0, MODEL_VOCABULARY)


def test_forks_go_on_alone(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("regex", "a(b|c)d"))
    matcher.consume(ord("a"))
    first, second = matcher.fork(), matcher.fork()
    consume_text(first, "bd")
    second.consume(ord("c"))
    assert first.is_finished and not second.is_finished
    assert allowed_ids(compiler, matcher) == {ord("b"), ord("c")}


def test_a_grammar_that_was_used_begins_anew(compiler: GrammarCompiler) -> None:
    grammar = Grammar("regex", "q[rs]")
    consume_text(compiler.compile(grammar), "qr")
    assert allowed_ids(compiler, compiler.compile(grammar)) == {ord("q")}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a": 1}', True),
        ('{\n  "a": 12\n}', True),
        ('{"a":"x"}', False),
        ("{}", False),
        ('{"a":1,"b":2}', False),
        ('{"a":1', False),
        ("[]", False),
        ('{"a":' + " " * 40 + "1}", False),
    ],
)
def test_a_json_schema_is_followed_and_white_space_is_bounded(
    compiler: GrammarCompiler, text: str, right: bool
) -> None:
    grammar = schema(type="object", properties={"a": {"type": "integer"}}, required=["a"], additionalProperties=False)
    assert follows(compiler, grammar, text) == right


def test_a_json_object_is_any_object(compiler: GrammarCompiler) -> None:
    grammar = response_grammar({"type": "json_object"})
    assert grammar is not None
    assert follows(compiler, grammar, '{"ä": [1, {"b": null}], "c": "\\n"}')
    assert not follows(compiler, grammar, "[1]")


def test_forced_tool_calls_are_followed_with_references_kept(compiler: GrammarCompiler) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Z"}, "next": {"$ref": "#"}},
        "$defs": {"Z": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    grammar = tool_grammar(tools, "required")
    assert grammar is not None
    assert follows(compiler, grammar, '[{"name": "f", "arguments": {"a": 3, "next": {"a": 1}}}]')
    assert not follows(compiler, grammar, '[{"name": "f", "arguments": {"a": "3"}}]')
    assert not follows(compiler, grammar, '[{"name": "g", "arguments": {"a": 3}}]')


@pytest.mark.parametrize(
    ("grammar", "code", "reason"),
    [
        (schema(type="objekt"), "invalid_json_schema", "objekt"),
        (schema(type="string", pattern="("), "invalid_json_schema", "regex"),
        (schema(**{"$ref": "#/nowhere"}), "invalid_json_schema", "nowhere"),
        (schema(**{"$ref": "http://localhost/x"}), "invalid_json_schema", "localhost"),
        (schema(**{"not": {"type": "string"}}), "invalid_json_schema", "not"),
        (schema(**{"$ref": "#"}), "invalid_json_schema", "leads back to itself"),
        (
            schema(properties={"c": {"$ref": "#", "type": "object"}}),
            "invalid_json_schema",
            "other keys beside it; leave them out",
        ),
        (schema(oneOf=[{"minimum": 1}, {"maximum": 3}]), "invalid_json_schema", "write anyOf"),
        (Grammar("json_schema", "[1]"), "invalid_json_schema", "object"),
        (Grammar("json_schema", "{"), "invalid_json_schema", "read"),
        (Grammar("lark", 'start: "a" foo'), "invalid_grammar", "foo"),
        (Grammar("regex", "("), "invalid_grammar", "regex"),
        (Grammar("regex", "a" * 300_000), "invalid_grammar", "300000 bytes; the most is 262144"),
    ],
)
def test_a_wrong_grammar_is_the_clients_error_in_one_line(
    compiler: GrammarCompiler, grammar: Grammar, code: str, reason: str
) -> None:
    with pytest.raises(RequestRefused, match=reason) as refused:
        compiler.compile(grammar)
    assert (refused.value.refusal.status, refused.value.refusal.code) == (400, code)
    assert "\n" not in refused.value.refusal.message


def test_the_cache_keeps_what_was_used_last_within_both_bounds() -> None:
    cache: GrammarCache[int] = GrammarCache(max_grammars=3, max_characters=10)
    short = [Grammar("regex", letter) for letter in "abcd"]
    for number, grammar in enumerate(short[:3]):
        cache.keep(grammar, number)
    assert cache.find(short[0]) == 0
    cache.keep(short[3], 3)
    assert [cache.find(grammar) for grammar in short] == [0, None, 2, 3]
    cache.keep(Grammar("regex", "x" * 9), 9)
    assert len(cache) == 2
    cache.keep(Grammar("regex", "x" * 11), 11)
    assert len(cache) == 0


def test_the_widest_object_that_is_taken_is_within_the_grammar_engines_limits(compiler: GrammarCompiler) -> None:
    properties = {f"p{i}": {"type": "string"} for i in range(MAX_PROPERTIES)}
    matcher = compiler.compile(schema(type="object", properties=properties))
    for token_id in b'{"p':
        assert token_id in allowed_ids(compiler, matcher)
        matcher.consume(token_id)
    assert allowed_ids(compiler, matcher) >= set(b"0123456789")
    assert matcher.error is None
