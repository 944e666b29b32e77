"""The prompts of /v1/completions: text or ids, one or several, and how they look when they are echoed."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.server.openai_requests import MAX_PROMPTS, CompletionRequest
from pagefleet_runtime.server.openai_responses import CompletionLogprobs
from pagefleet_runtime.server.service import ModelText
from pagefleet_runtime.server.validation import check_text_size, check_token_ids
from pagefleet_runtime.text.detokenizer import Detokenizer
from pagefleet_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `text` is as the client wrote it, or the text of its ids; empty unless it is to be echoed."""

    ids: tuple[int, ...]
    text: str


def prompts_of(fields: CompletionRequest, text: ModelText) -> tuple[Prompt, ...]:
    """Return the request's prompts as token ids. Raises RequestRefused (400) for none, an empty one or too many.

    A text of no characters is a prompt where the tokenizer puts a token in front of every text (BOS).
    """
    given = _listed(fields.prompt)
    if not given:
        raise invalid("prompt is an empty list; send at least one prompt", "prompt")
    if len(given) > MAX_PROMPTS:
        raise invalid(f"prompt holds {len(given)} prompts; at most {MAX_PROMPTS} are served at once", "prompt")
    return tuple(_prompt(one, index, fields.echo, text) for index, one in enumerate(given))


def _listed(prompt: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    one = [item for item in prompt if isinstance(item, int)]
    if one:
        return [one]
    return [item for item in prompt if not isinstance(item, int)]


def _prompt(given: str | list[int], index: int, echo: bool, text: ModelText) -> Prompt:
    if isinstance(given, str):
        check_text_size(len(given), text.longest_token_bytes, text.length_limit, "prompt")
    ids = text.tokenizer.encode(given, add_special_tokens=True) if isinstance(given, str) else given
    if not ids:
        raise _empty(index)
    check_token_ids(ids, text.info.vocab_size, "prompt")
    if not echo:
        return Prompt(tuple(ids), "")
    return Prompt(tuple(ids), given if isinstance(given, str) else text.tokenizer.decode(ids))


def _empty(index: int) -> RequestRefused:
    return invalid(f"prompt {index} holds no token, and this model puts none in front; send at least one", "prompt")


def echoed_logprobs(
    lists: CompletionLogprobs, prompt: Prompt, logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer
) -> None:
    """Add the prompt's tokens to the lists. The first token has no probability: nothing stands before it."""
    detokenizer = Detokenizer(tokenizer)
    offset = 0
    for token_id, logprob in zip(prompt.ids, (None, *logprobs), strict=True):
        lists.add(token_id, logprob, offset)
        offset += len(detokenizer.push(token_id))
