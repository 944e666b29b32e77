"""Keeps control tokens' texts that a client typed out of a chat template's sight, and puts them back as plain text."""

import re
import secrets

from pagefleet_runtime.text.control import ControlTexts

# Printable letters without case or escapes, so that trimming, JSON and repr in a template leave them alone.
_LETTERS = "〇一二三四五六七八九"
_DIGITS = str.maketrans("0123456789", _LETTERS)
_VALUES = str.maketrans(_LETTERS, "0123456789")
_END = "乙"


class TypedText:
    """One per prompt. `hide` every string that a client typed, render, mark the rest's control tokens, `restore`."""

    def __init__(self) -> None:
        self._begin = f"{secrets.randbelow(10**24):024d}".translate(_DIGITS) + "甲"
        self._hidden: list[str] = []

    def hide(self, text: str, control: ControlTexts) -> str:
        """Return `text` with placeholders for control texts, and for edges that could become one with what the
        template or a neighbour puts beside them."""
        plain = control.replace(text, self._placeholder)
        inner = plain.strip()
        head, tail = control.edges(inner)
        if not head and not tail:
            return plain
        if head + tail >= len(inner):
            return plain.replace(inner, self._placeholder(inner))
        parts = (inner[:head], inner[head : len(inner) - tail], inner[len(inner) - tail :])
        shielded = "".join(self._placeholder(part) if part and place != 1 else part for place, part in enumerate(parts))
        begin = plain.index(inner)
        return plain[:begin] + shielded + plain[begin + len(inner) :]

    def hide_whole(self, text: str, control: ControlTexts) -> str:
        """Return `text` with placeholders for control texts only; for the keys of objects, which templates know."""
        return control.replace(text, self._placeholder)

    def restore(self, rendered: str) -> str:
        if not self._hidden:
            return rendered
        number = re.compile(f"{self._begin}([{_LETTERS}]+){_END}")
        return number.sub(lambda found: self._hidden[int(found[1].translate(_VALUES))], rendered)

    def _placeholder(self, text: str) -> str:
        self._hidden.append(text)
        return self._begin + str(len(self._hidden) - 1).translate(_DIGITS) + _END
