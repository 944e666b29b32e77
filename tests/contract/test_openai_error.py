"""The JSON that answers are written in: it comes back as it was, and no client takes a text for the end of a line."""

import json
import sys

import httpx2
import pytest

from pagefleet_contract.openai_error import json_bytes

# Characters at which `str.splitlines` breaks a line, and with it the line readers of common HTTP clients. Server-sent
# events end a line only at CR and LF; but a client that reads them by such a reader gets half an event.
LINE_BREAKS = [chr(code) for code in range(sys.maxunicode + 1) if len(f"a{chr(code)}b".splitlines()) > 1]


@pytest.mark.parametrize("character", LINE_BREAKS, ids=ascii)
def test_a_text_with_a_line_break_is_one_line_for_every_reader_of_lines(character: str) -> None:
    content = {f"k{character}": [f"left{character}right", character * 2]}
    written = json_bytes(content)
    assert written.decode().splitlines() == [written.decode()]
    (line,) = httpx2.Response(200, content=b"data: " + written + b"\n").iter_lines()
    assert json.loads(line.removeprefix("data: ")) == content


def test_every_character_comes_back_and_others_are_not_spelt_out() -> None:
    everything = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    assert json.loads(json_bytes(everything)) == everything
    assert json_bytes("é 语 😀") == '"é 语 😀"'.encode()


def test_half_a_surrogate_pair_is_shown_as_lost_and_infinity_is_a_bug() -> None:
    assert json.loads(json_bytes("a\ud800b")) == "a?b"
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes(float("inf"))
