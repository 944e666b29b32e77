"""What a client asked for, as values: no state, no tensors, no HTTP."""

from dataclasses import dataclass, field
from typing import Literal

GrammarKind = Literal["json_object", "json_schema", "lark", "regex"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that every choice of the request must follow. `text` is JSON for the JSON kinds."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Neutral values mean that a rule is off."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over the output only
    frequency_penalty: float = 0.0  # over the output only
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0  # 64 bits; the server draws one where the client gave none
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None  # None: no logprobs; 0: the chosen token's only
    prompt_logprobs: int | None = None  # the same for the prompt's tokens (echo)
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as the engine sees it: `num_choices` answers to one prompt of token ids."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    num_choices: int = 1
    tenant: str = ""
    priority: int = 0  # smaller is sooner; only policy Priority looks at it
    arrival_seconds: float = field(default=0.0)  # time.monotonic(), which both processes share


@dataclass(frozen=True, slots=True, order=True)
class SequenceKey:
    """One choice of one request."""

    request_id: str
    choice_index: int
