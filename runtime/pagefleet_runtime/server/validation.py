"""From the request's fields to the engine's: what needs the model's figures is checked here, in one place."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.request import Grammar, SamplingParams
from pagefleet_runtime.server.openai_requests import SamplingFields

_NORMALIZER_MARGIN = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """Which logprobs the engine is asked for: None, or how many alternatives; of the answer and of the prompt."""

    answer: int | None = None
    prompt: int | None = None


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The longest request as things are, and what it would be if the KV budget held it."""

    tokens: int
    allowed_tokens: int

    @property
    def is_of_the_budget(self) -> bool:
        return self.tokens < self.allowed_tokens

    @property
    def words(self) -> str:
        words = f"a request is at most {self.tokens} tokens here, prompt and answer together"
        if not self.is_of_the_budget:
            return words
        return f"{words}: the server's KV budget (kvCache.budget) holds no more of the {self.allowed_tokens} allowed"


def check_stream_options(fields: SamplingFields) -> None:
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")


def wants_usage(fields: SamplingFields) -> bool:
    """Whether the stream ends with a chunk of its own for the usage: only where the client said true."""
    return fields.stream_options is not None and fields.stream_options.include_usage is True


def answer_length(prompt_tokens: int, asked: int | None, limit: LengthLimit, asked_by: str) -> int:
    """Return the longest answer: what was asked for, or what the prompt leaves of the limit.

    Raises RequestRefused (400, context_length_exceeded) where prompt and answer don't fit.
    """
    wanted = max(limit.tokens - prompt_tokens, 1) if asked is None else asked
    if prompt_tokens + wanted <= limit.tokens:
        return wanted
    raise _too_long(prompt_tokens, asked, limit, asked_by)


def _too_long(prompt_tokens: int, asked: int | None, limit: LengthLimit, asked_by: str) -> RequestRefused:
    left = limit.tokens - prompt_tokens
    answer = "at least 1 is needed for an answer" if asked is None else f"{asked_by} asks for {asked}"
    remedy = f"ask for at most {left} tokens or shorten the prompt" if left > 0 else "shorten the prompt"
    if limit.is_of_the_budget:
        remedy += ", or have the server's budget raised"
    message = f"{limit.words}; the prompt has {prompt_tokens} tokens and {answer}; {remedy}"
    return invalid(message, "messages" if asked is None else asked_by, "context_length_exceeded")


def num_characters(value: object) -> int:
    """Return how much text stands in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(num_characters, value))
    return sum(map(num_characters, value.values())) if isinstance(value, dict) else 0


def check_text_size(characters: int, longest_token_bytes: int, limit: LengthLimit, param: str) -> None:
    """Raise RequestRefused (400) for a text that is too long by far: tokenising megabytes takes many seconds.

    What is only somewhat too long is found by its tokens. A normaliser may shorten a text, hence the margin.
    """
    least_tokens = characters // (longest_token_bytes * _NORMALIZER_MARGIN)
    if least_tokens > limit.tokens:
        message = (
            f"{limit.words}; {param} has {characters} characters, which are more than {least_tokens} tokens; shorten it"
        )
        raise invalid(message, param, "context_length_exceeded")


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise RequestRefused (400) where an id is not in the vocabulary."""
    if ids and max(ids) >= vocab_size:
        raise invalid(f"{param} holds token id {max(ids)}; the model's ids are 0 to {vocab_size - 1}", param)


def logit_bias(biases: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Return the biases by token id. Raises RequestRefused (400) for a key that is no token id."""
    pairs = []
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise invalid(f"logit_bias has the key '{key[:50]}'; keys are token ids in decimal", "logit_bias")
        pairs.append((int(key), bias))
    check_token_ids([token_id for token_id, _ in pairs], vocab_size, "logit_bias")
    return tuple(pairs)


def sampling_params(
    fields: SamplingFields, *, max_tokens: int, vocab_size: int, shown: Shown, grammar: Grammar | None
) -> SamplingParams:
    """Return how the engine is to choose tokens. Raises RequestRefused (400)."""
    check_token_ids(fields.stop_token_ids, vocab_size, "stop_token_ids")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.temperature,
        # No probability mass at all still leaves the most probable token.
        top_p=fields.top_p or 1.0,
        top_k=1 if fields.top_p == 0 else max(fields.top_k, 0),
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=logit_bias(fields.logit_bias, vocab_size),
        seed=secrets.randbits(64) if fields.seed is None else fields.seed % 2**64,
        ignore_eos=fields.ignore_eos,
        stop_token_ids=tuple(fields.stop_token_ids),
        top_logprobs=shown.answer,
        prompt_logprobs=shown.prompt,
        grammar=grammar,
    )
