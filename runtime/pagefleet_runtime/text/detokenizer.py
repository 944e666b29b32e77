"""Token ids to text, one token at a time: whole characters only, never later than their last byte."""

import codecs

from pagefleet_runtime.text.tokenizer import Tokenizer


class Detokenizer:
    """One per choice. What it gives, joined, is `Tokenizer.decode` of all ids.

    `continues_text`: the text goes on from a raw prompt, so a sentencepiece model's first space belongs to it.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strips_space = tokenizer.strips_first_space and not continues_text

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character lacks bytes."""
        if self._tokenizer.is_special(token_id):
            return ""
        return self._stripped(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """Return one U+FFFD where a character was cut at the end, else nothing."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
