"""Token ids to text, one token at a time: whole characters only, never later than their last byte."""

from pagefleet_runtime.text.tokenizer import Tokenizer


class Detokenizer:
    """One per choice.

    `continues_text`: the text goes on from a raw prompt, so a sentencepiece model's first space belongs to it.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues_text: bool = False) -> None:
        raise NotImplementedError

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character lacks bytes."""
        raise NotImplementedError

    def finish(self) -> str:
        """Return one U+FFFD where a character was cut at the end, else nothing."""
        raise NotImplementedError
