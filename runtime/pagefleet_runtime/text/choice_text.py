"""One choice's text as it grows: detokenized, cut at stop strings, with the tokens that belong to each piece."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.text.detokenizer import Detokenizer
from pagefleet_runtime.text.stops import StopFound, StopSearch
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

    `tokens` are those whose text begins in this piece. `finish_reason` is the engine's, or `stop` where a stop string
    ended the text: then `stop_string` names it, and the caller sends StopChoice.
    """

    text: str = ""
    tokens: tuple[TextToken, ...] = ()
    finish_reason: str | None = None
    stop_string: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.finish_reason)


class ChoiceText:
    """One per choice. After the end, `push` gives empty deltas and counts nothing.

    Text that may become a stop is held back, and the tokens that begin in it with it. A stop cuts off its tokens too,
    unless part of their text stands before it. A character cut off at the end is one U+FFFD.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        continues_text: bool = False,
    ) -> None:
        """`include_stop` keeps the stop string in the text; `continues_text` is for /v1/completions."""
        self.completion_tokens = 0  # sampled, up to the one that ended the text, an EOS included
        self.finish_reason: str | None = None
        self._detokenizer = Detokenizer(tokenizer, continues_text=continues_text)
        self._search = StopSearch(stops)
        self._include_stop = include_stop
        self._held = ""
        self._num_shown = 0
        self._waiting: deque[TextToken] = deque()

    def push(self, output: TokenOutput) -> TextDelta:
        """Take the choice's next output in order, and return what may be shown now."""
        if self.finish_reason is not None:
            return TextDelta()
        self.completion_tokens += output.token_id is not None
        text = self._new_text(output)
        self._held += text
        found = self._search.push(text)
        if found is not None:
            return self._stopped(found)
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            return self._show(len(self._held), output.finish_reason, None)
        return self._show(len(self._held) - self._search.num_held, None, None)

    def _new_text(self, output: TokenOutput) -> str:
        text = ""
        if output.token_id is not None and not output.ends_text:
            offset = self._num_shown + len(self._held)
            self._waiting.append(TextToken(output.token_id, output.logprob, offset))
            text = self._detokenizer.push(output.token_id)
        return text if output.finish_reason is None else text + self._detokenizer.finish()

    def _stopped(self, found: StopFound) -> TextDelta:
        self.finish_reason = "stop"
        end = found.end if self._include_stop else found.start
        self._held = self._held[: end - self._num_shown]
        while self._waiting and self._waiting[-1].text_offset >= end:
            self._waiting.pop()
        return self._show(len(self._held), "stop", found.stop)

    def _show(self, size: int, finish_reason: str | None, stop: str | None) -> TextDelta:
        text, self._held = self._held[:size], self._held[size:]
        self._num_shown += size
        tokens = []
        while self._waiting and (self._waiting[0].text_offset < self._num_shown or finish_reason is not None):
            tokens.append(self._waiting.popleft())
        return TextDelta(text, tuple(tokens), finish_reason, stop)
