"""Stop strings are found wherever tokens end, and only what may become one is held back."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_runtime.text.choice_text import ChoiceText
from pagefleet_runtime.text.model_tokenizer import load_tokenizer
from pagefleet_runtime.text.stops import StopSearch
from pagefleet_runtime.text.tokenizer import Tokenizer
from tests.runtime.tiny_tokenizer import EOS_ID, write_tiny_tokenizer
from tests.runtime.token_outputs import joined, outputs_of, pushed

MERGED = (("B", "C"), ("D", "E"), ("DE", "F"), ("H", "I"), ("a", "a"), ("a", "b"), ("b", "a"), ("aa", "b"))
FIRST_MERGED_ID = 260
ID_OF_PIECE = {left + right: FIRST_MERGED_ID + place for place, (left, right) in enumerate(MERGED)}

AB_TEXTS = [
    first + second + third + last
    for first in ("", "a", "b")
    for second in ("", "a", "b")
    for third in ("", "a", "b")
    for last in "ab"
]
STOPS = st.lists(st.sampled_from(sorted(set(AB_TEXTS))), max_size=3, unique=True)
AB_PIECES = st.lists(st.sampled_from(["a", "b", "aa", "ab", "ba", "aab"]), max_size=8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(path, merged=MERGED)
    return load_tokenizer(path)


def ids_of(*pieces: str) -> list[int]:
    return [ID_OF_PIECE.get(piece) or ord(piece) for piece in pieces]


def first_complete(text: str, stops: list[str]) -> tuple[int, int] | None:
    """The truth, slowly: the stop that ends first, of those the longest, as (start, end)."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end - max(map(len, ending)), end
    return None


@settings(max_examples=400)
@given(text=st.text(alphabet="ab", max_size=12), stops=STOPS, cuts=st.sets(st.integers(1, 11)))
def test_the_stop_found_doesnt_depend_on_where_the_text_is_cut(text: str, stops: list[str], cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    search = StopSearch(stops)
    found = None
    for start, end in pairwise(edges):
        found = found or search.push(text[start:end])
    expected = first_complete(text, stops)
    assert (found and (found.start, found.end)) == expected


@given(text=st.text(alphabet="ab", max_size=12), stops=STOPS)
def test_what_is_held_is_the_longest_end_that_may_become_a_stop(text: str, stops: list[str]) -> None:
    search = StopSearch(stops)
    if search.push(text) is None:
        held = max((size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])), default=0)
        assert search.num_held == held


@given(pieces=AB_PIECES, stops=STOPS, include=st.booleans())
def test_text_tokens_and_count_are_right_for_any_split_into_tokens(
    tokenizer: Tokenizer, pieces: list[str], stops: list[str], include: bool
) -> None:
    text = "".join(pieces)
    choice = ChoiceText(tokenizer, stops, include_stop=include)
    deltas = pushed(choice, outputs_of(ids_of(*pieces)))
    found = first_complete(text, stops)
    shown_end = len(text) if found is None else found[1] if include else found[0]
    assert joined(deltas) == text[:shown_end]
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length" if found is None else "stop"]
    starts = [sum(map(len, pieces[:place])) for place in range(len(pieces))]
    shown = [token for delta in deltas for token in delta.tokens]
    assert [token.text_offset for token in shown] == [start for start in starts if start < shown_end]
    assert choice.completion_tokens == (
        len(pieces) if found is None else sum(1 for start in starts if start < found[1])
    )


@given(pieces=AB_PIECES, stops=STOPS)
def test_every_delta_but_the_last_carries_text_and_tokens_no_later_than_their_text(
    tokenizer: Tokenizer, pieces: list[str], stops: list[str]
) -> None:
    deltas = pushed(ChoiceText(tokenizer, stops), outputs_of(ids_of(*pieces)))
    shown = 0
    for delta in deltas:
        assert delta.text or delta is deltas[-1]
        assert all(token.text_offset >= shown for token in delta.tokens)
        shown += len(delta.text)


def test_a14_a_stop_string_over_several_tokens_ends_the_text_before_it(tokenizer: Tokenizer) -> None:
    choice = ChoiceText(tokenizer, ("DEFGHIJ",))
    deltas = pushed(choice, outputs_of(ids_of("A", "BC", "DEF", "G", "HI", "J", "K")))
    assert [delta.text for delta in deltas] == ["A", "BC", ""]
    assert (deltas[-1].finish_reason, deltas[-1].stop_string) == ("stop", "DEFGHIJ")
    assert choice.completion_tokens == 6


def test_a14_a_near_miss_is_released_with_its_tokens(tokenizer: Tokenizer) -> None:
    deltas = pushed(ChoiceText(tokenizer, ("DEFGHIJ",)), outputs_of(ids_of("DEF", "G", "X", "Y")))
    assert [delta.text for delta in deltas] == ["DEFGX", "Y"]
    assert [token.token_id for token in deltas[0].tokens] == ids_of("DEF", "G", "X")


def test_a14_overlapping_beginnings_are_followed(tokenizer: Tokenizer) -> None:
    deltas = pushed(ChoiceText(tokenizer, ("aab",)), outputs_of(ids_of("aa", "ab")))
    assert joined(deltas) == "a"
    assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize("ends", ["length", "eos"])
def test_a14_held_text_is_flushed_at_the_end(tokenizer: Tokenizer, ends: str) -> None:
    eos_id = EOS_ID if ends == "eos" else None
    choice = ChoiceText(tokenizer, ("DEFG",))
    deltas = pushed(choice, outputs_of(ids_of("A", "DEF"), eos_id=eos_id))
    assert joined(deltas) == "ADEF"
    assert deltas[-1].finish_reason == ("stop" if ends == "eos" else "length")
    assert choice.completion_tokens == (3 if ends == "eos" else 2)
    assert [token.token_id for delta in deltas for token in delta.tokens] == ids_of("A", "DEF")


@pytest.mark.parametrize("stops", [("DE", "DEF"), ("DEF", "DE")])
def test_a14_of_two_stops_the_one_complete_first_wins(tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
    deltas = pushed(ChoiceText(tokenizer, stops, include_stop=True), outputs_of(ids_of("A", "DEF")))
    assert joined(deltas) == "ADE"
    assert deltas[-1].stop_string == "DE"


@pytest.mark.parametrize("stops", [("F", "EF"), ("EF", "F")])
def test_a14_of_two_stops_complete_at_once_the_longer_one_wins(tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
    deltas = pushed(ChoiceText(tokenizer, stops), outputs_of(ids_of("A", "DEF")))
    assert joined(deltas) == "AD"


def test_a14_the_stop_string_stays_where_the_client_wants_it(tokenizer: Tokenizer) -> None:
    deltas = pushed(ChoiceText(tokenizer, ("FG",), include_stop=True), outputs_of(ids_of("A", "DEF", "G", "K")))
    assert joined(deltas) == "ADEFG"
    assert [token.token_id for delta in deltas for token in delta.tokens] == ids_of("A", "DEF", "G")


def test_a14_nothing_is_sent_or_counted_after_the_stop(tokenizer: Tokenizer) -> None:
    choice = ChoiceText(tokenizer, ("B",))
    pushed(choice, outputs_of(ids_of("A", "B", "K", "K")))
    assert choice.completion_tokens == 2
    assert choice.finish_reason == "stop"


def test_a_token_that_is_partly_before_the_stop_keeps_its_logprob(tokenizer: Tokenizer) -> None:
    deltas = pushed(ChoiceText(tokenizer, ("EF",)), outputs_of(ids_of("A", "DEF")))
    assert joined(deltas) == "AD"
    assert [token.token_id for delta in deltas for token in delta.tokens] == ids_of("A", "DEF")


def test_a_stop_may_end_inside_a_character_of_several_tokens(tokenizer: Tokenizer) -> None:
    deltas = pushed(ChoiceText(tokenizer, ("é!",)), outputs_of([*"aé!b".encode()]))
    assert [delta.text for delta in deltas] == ["a", ""]
    assert [token.token_id for delta in deltas for token in delta.tokens] == [ord("a")]


def test_a16_bytes_of_the_tokens_of_a_choice_are_its_text(tokenizer: Tokenizer) -> None:
    deltas = pushed(ChoiceText(tokenizer), outputs_of([*"a😀é".encode()], eos_id=EOS_ID))
    tokens = [token for delta in deltas for token in delta.tokens]
    assert b"".join(tokenizer.token_bytes(token.token_id) for token in tokens) == "a😀é".encode()
    assert all(token.logprob is not None for token in tokens)
    assert [len(delta.tokens) for delta in deltas if delta.text] == [1, 4, 2]
