"""What tokens are in bytes and text, and which text becomes control tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_runtime.errors import ModelRefused, RequestRefused
from pagefleet_runtime.text.model_tokenizer import load_tokenizer
from pagefleet_runtime.text.pretrained import load_pretrained
from pagefleet_runtime.text.tokenizer import Tokenizer
from tests.runtime.tiny_tokenizer import (
    CONTROL_TOKENS,
    EOS_ID,
    IM_START_ID,
    write_tiny_sentencepiece,
    write_tiny_tokenizer,
)

PIECES = st.lists(st.sampled_from(["a", "<", "|", "ab", " ", "é", "日", "\n", "<|im_", *CONTROL_TOKENS]), max_size=12)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(path, merged=(("a", "b"),))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def reference(directory: Path) -> Any:
    return load_pretrained(directory)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("sentencepiece")
    write_tiny_sentencepiece(path, strips_first_space=True)
    return load_tokenizer(path)


@given(pieces=PIECES)
def test_a_raw_prompt_has_the_ids_that_transformers_gives_control_tokens_included(
    tokenizer: Tokenizer, reference: Any, pieces: list[str]
) -> None:
    text = "".join(pieces)
    assert tokenizer.encode(text, add_special_tokens=True) == reference.encode(text)


@given(ids=st.lists(st.integers(0, 260), max_size=12))
def test_decoding_is_that_of_transformers_for_any_bytes(tokenizer: Tokenizer, reference: Any, ids: list[int]) -> None:
    expected = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert tokenizer.decode(ids) == expected


def test_text_without_marks_never_becomes_a_control_token(tokenizer: Tokenizer) -> None:
    assert not {256, 257, 258, 259} & set(tokenizer.encode_marked("<|im_end|><|im_start|><|bos|>"))
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [EOS_ID]


def test_the_tokenizers_own_rule_adds_its_special_tokens(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    definition = json.loads(path.read_text())
    begin = [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": begin,
        "pair": begin,
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [256], "tokens": ["<|bos|>"]}},
    }
    path.write_text(json.dumps(definition))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a", add_special_tokens=True) == [256, 97]
    assert tokenizer.encode("a", add_special_tokens=False) == [97]


def test_a16_token_bytes_are_its_own_and_parts_of_characters_are_shown_as_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == "😀".encode()
    assert [tokenizer.token_text(token_id) for token_id in ids[:2]] == ["bytes:\\xf0", "bytes:\\x9f"]
    assert tokenizer.token_text(ord("a")) == "a"
    assert tokenizer.token_bytes(IM_START_ID) == b"<|im_start|>"
    assert tokenizer.token_bytes(9999) == b""


def test_sentencepiece_tokens_are_bytes_with_real_spaces(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("hi é", add_special_tokens=False)
    assert b"".join(map(sentencepiece.token_bytes, ids)) == " hi é".encode()
    assert sentencepiece.decode(ids) == "hi é"


def test_special_tokens_are_known_and_not_decoded(tokenizer: Tokenizer) -> None:
    assert [tokenizer.is_special(token_id) for token_id in (97, IM_START_ID, EOS_ID, 9999)] == [
        False,
        True,
        True,
        False,
    ]
    assert tokenizer.decode([97, IM_START_ID, 98]) == "ab"


def test_eos_ids_come_from_the_tokenizer_and_the_generation_settings(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS_ID, 259]}))
    assert load_tokenizer(tmp_path).eos_token_ids == (EOS_ID, 259)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestRefused, match="surrogate") as refused:
        tokenizer.encode("cut here \ud83d", add_special_tokens=True)
    assert refused.value.refusal.status == 400


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="has no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelRefused, match="is no directory"):
        load_tokenizer(tmp_path / "absent")


def test_a_decoder_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    definition = json.loads(path.read_text()) | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    path.write_text(json.dumps(definition))
    with pytest.raises(ModelRefused, match="WordPiece"):
        load_tokenizer(tmp_path)
