"""Deltas are whole characters, come as soon as they can, and joined are the decoded text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_runtime.text.choice_text import ChoiceText
from pagefleet_runtime.text.detokenizer import Detokenizer
from pagefleet_runtime.text.model_tokenizer import load_tokenizer
from pagefleet_runtime.text.pretrained import load_pretrained
from pagefleet_runtime.text.tokenizer import Tokenizer
from tests.runtime.tiny_tokenizer import IM_START_ID, write_tiny_sentencepiece, write_tiny_tokenizer
from tests.runtime.token_outputs import joined, outputs_of, pushed

SCRIPT = "hi 😀 é 日本 👩‍👩‍👧\ufffd"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(path)
    return load_tokenizer(path)


@pytest.fixture(scope="module", params=[True, False], ids=["llama", "gemma"])
def sentencepiece_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sentencepiece")
    write_tiny_sentencepiece(path, strips_first_space=request.param)
    return path


def deltas_of(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, 300), max_size=16))
def test_joined_deltas_are_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(deltas_of(Detokenizer(tokenizer), ids)) == tokenizer.decode(ids)


@given(text=st.text(max_size=12))
def test_no_character_waits_longer_than_its_last_byte(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    for character in text:
        pieces = [detokenizer.push(byte) for byte in character.encode()]
        assert pieces == [""] * (len(pieces) - 1) + [character]


def test_sentencepiece_text_is_that_of_transformers(sentencepiece_path: Path) -> None:
    tokenizer, reference = load_tokenizer(sentencepiece_path), load_pretrained(sentencepiece_path)

    @given(text=st.text(alphabet="ab é😀日\u2581", max_size=12))
    def check(text: str) -> None:
        ids = reference.encode(text, add_special_tokens=False)
        expected = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert "".join(deltas_of(Detokenizer(tokenizer), ids)) == tokenizer.decode(ids) == expected

    check()


def test_text_that_goes_on_from_a_prompt_keeps_its_first_space(tmp_path: Path) -> None:
    write_tiny_sentencepiece(tmp_path, strips_first_space=True)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("a b", add_special_tokens=False)
    assert "".join(deltas_of(Detokenizer(tokenizer), ids)) == "a b"
    assert "".join(deltas_of(Detokenizer(tokenizer, continues_text=True), ids)) == " a b"


def test_special_tokens_are_not_shown_and_dont_cut_characters(tokenizer: Tokenizer) -> None:
    first, second = "é".encode()
    assert deltas_of(Detokenizer(tokenizer), [first, IM_START_ID, second]) == ["", "", "é", ""]


def test_a15_emoji_and_accents_over_byte_tokens_come_whole_and_a_true_ufffd_is_kept(tokenizer: Tokenizer) -> None:
    deltas = deltas_of(Detokenizer(tokenizer), list(SCRIPT.encode()))
    assert "".join(deltas) == SCRIPT
    assert deltas[:3] == ["h", "i", " "]
    assert all(delta in ("", *SCRIPT) for delta in deltas)


@pytest.mark.parametrize("kept_bytes", [1, 2, 3])
def test_a15_a_character_cut_at_the_end_is_one_ufffd_streamed_or_not(tokenizer: Tokenizer, kept_bytes: int) -> None:
    ids = [*b"hi ", *"😀".encode()[:kept_bytes]]
    streamed = pushed(ChoiceText(tokenizer), outputs_of(ids))
    assert joined(streamed) == tokenizer.decode(ids) == "hi \ufffd"
    assert streamed[-1].finish_reason == "length"


def test_a15_eight_streams_in_turn_dont_mix_their_bytes_and_one_may_leave(tokenizer: Tokenizer) -> None:
    texts = [f"{number} {SCRIPT}" for number in range(8)]
    choices = [ChoiceText(tokenizer) for _ in texts]
    sent: list[list[str]] = [[] for _ in texts]
    scripts = [outputs_of(list(text.encode())) for text in texts]
    for step in range(max(map(len, scripts))):
        for number, script in enumerate(scripts):
            if step < len(script) and not (number == 3 and step > 4):
                sent[number].append(choices[number].push(script[step]).text)
    for number, text in enumerate(texts):
        assert "".join(sent[number]) == (text if number != 3 else "3 hi ")


def test_stream_and_whole_text_agree_at_every_length(tokenizer: Tokenizer) -> None:
    ids = list(SCRIPT.encode())
    for length in range(1, len(ids) + 1):
        choice = ChoiceText(tokenizer, ("never",))
        assert joined(pushed(choice, outputs_of(ids[:length]))) == tokenizer.decode(ids[:length])
