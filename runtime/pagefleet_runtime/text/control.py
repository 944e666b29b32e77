"""The texts of control tokens: where they stand in a text, and which edges of a text could grow into one."""

import re
from collections.abc import Callable, Iterable


class ControlTexts:
    """A fixed set of texts to look for; of several at one place the longest counts, as in the tokenizers library."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths_by_head: dict[str, list[int]] = {}
        for text in self._texts:
            self._lengths_by_head.setdefault(text[:2], []).append(len(text))
        for lengths in self._lengths_by_head.values():
            lengths[:] = sorted(set(lengths), reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._heads = frozenset(text[:end] for text in self._texts for end in range(1, len(text)))
        self._tails = frozenset(text[start:] for text in self._texts for start in range(1, len(text)))
        self._longest = max(map(len, self._texts), default=0)

    def replace(self, text: str, replacement: Callable[[str], str]) -> str:
        """Return `text` with each control text replaced."""
        parts: list[str] = []
        done = 0
        for first in self._first.finditer(text):
            start = first.start()
            found = self._at(text, start) if start >= done else None
            if found is not None:
                parts += (text[done:start], replacement(found))
                done = start + len(found)
        return text if not parts else "".join((*parts, text[done:]))

    def edges(self, text: str) -> tuple[int, int]:
        """Return how many characters at the beginning could end a control text that begins before `text`, and how many
        at the end could begin one. Template and neighbours could complete it otherwise."""
        longest = min(self._longest, len(text))
        head = next((size for size in range(longest, 0, -1) if text[:size] in self._tails), 0)
        tail = next((size for size in range(longest, 0, -1) if text[-size:] in self._heads), 0)
        return head, tail

    def _at(self, text: str, start: int) -> str | None:
        for head in (text[start : start + 2], text[start]):
            for length in self._lengths_by_head.get(head, ()):
                if text[start : start + length] in self._texts:
                    return text[start : start + length]
        return None
