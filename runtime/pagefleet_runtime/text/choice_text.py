"""One choice's text as it grows: detokenized, cut at stop strings, with the tokens that belong to each piece."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextToken:
    """One sampled token that has part in the text."""

    token_id: int
    logprob: TokenLogprob | None
    text_offset: int  # characters of this choice's text before the token's


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of a choice. Falsy when there is nothing to send; joined, the pieces are the choice.

    `tokens` begin in this piece. `finish_reason` is the engine's, or `stop` where a stop string ended the text:
    then `stop_string` names it, and the caller sends StopChoice.
    """

    text: str = ""
    tokens: tuple[TextToken, ...] = ()
    finish_reason: str | None = None
    stop_string: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.finish_reason)


class ChoiceText:
    """One per choice. After the end, `push` gives empty deltas and counts nothing."""

    completion_tokens: int  # sampled, up to the one that ended the text, an EOS included
    finish_reason: str | None

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        continues_text: bool = False,
    ) -> None:
        """`include_stop` keeps the stop string in the text; `continues_text` is for /v1/completions."""
        raise NotImplementedError

    def push(self, output: TokenOutput) -> TextDelta:
        """Take the choice's next output in order, and return what may be shown now."""
        raise NotImplementedError
