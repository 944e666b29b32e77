"""OpenAI's answer objects that more than one endpoint uses: usage and logprobs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.server.generation import Usage
from pagefleet_runtime.text.choice_text import TextToken
from pagefleet_runtime.text.tokenizer import Tokenizer

# JSON knows no minus infinity; the engine reports it as this number too.
LOWEST_LOGPROB = -9999.0

Json = dict[str, Any]


def usage_object(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _token_object(tokenizer: Tokenizer, token_id: int, logprob: float) -> Json:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(logprob, LOWEST_LOGPROB),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def token_logprobs(tokenizer: Tokenizer, tokens: Sequence[TextToken], num_top: int) -> list[Json]:
    """Return the entries of chat's `logprobs.content` (and of the Responses API's `logprobs`)."""
    return [
        _token_object(tokenizer, token.token_id, token.logprob.logprob)
        | {"top_logprobs": [_token_object(tokenizer, *top) for top in token.logprob.top[:num_top]]}
        for token in tokens
        if token.logprob is not None
    ]


@dataclass(slots=True)
class CompletionLogprobs:
    """The four parallel lists of /v1/completions, as they grow. Offsets count from the beginning of the answer."""

    tokenizer: Tokenizer
    num_top: int
    lists: Json = field(
        default_factory=lambda: {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    )

    def add(self, token_id: int, logprob: TokenLogprob | None, text_offset: int) -> None:
        """Add a token; only the first one of a prompt has no logprob."""
        self.lists["tokens"].append(self.tokenizer.token_text(token_id))
        self.lists["text_offset"].append(text_offset)
        self.lists["token_logprobs"].append(None if logprob is None else max(logprob.logprob, LOWEST_LOGPROB))
        self.lists["top_logprobs"].append(None if logprob is None else self._top(logprob))

    def _top(self, logprob: TokenLogprob) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, value in logprob.top[: self.num_top]:
            # Two tokens may have the same text; the more probable one comes first and keeps it.
            top.setdefault(self.tokenizer.token_text(token_id), max(value, LOWEST_LOGPROB))
        return top

    def take(self) -> Json:
        """Return the lists so far and begin new ones."""
        taken = self.lists
        self.lists = {name: [] for name in taken}
        return taken
