"""The step as a value: what the scheduler hands to the executor, and what comes back.

Everything here is frozen and holds no tensors. The executor makes the copies first, then runs all rows in one
forward, then samples. It decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_runtime.request import SamplingParams, SequenceKey


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the whole page `source` to `target` before anything of this step is written (copy-on-write)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One token to draw from the logits of a row's last token.

    `prompt_ids` and `output_ids` are views that must not be changed; they don't change while the step runs.
    The draw depends on (params.seed, choice_index, len(output_ids)) alone.
    """

    key: SequenceKey
    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive tokens of one sequence: a decode (one token) or a chunk of prefill.

    Token `token_ids[i]` has position `start_position + i` and is written to slot
    `block_table[p // block_size] * block_size + p % block_size` of its position p. It attends to all positions up
    to and including its own. `block_table` covers every position up to the row's last one.
    `samples` is empty where the chunk doesn't end at the sequence's last known token; several samples share one row of
    logits (n > 1). `prompt_logprobs` asks for the logprobs of the tokens that follow each token of this row in the
    prompt: `next_prompt_ids[i]` follows `token_ids[i]`; the list is shorter by one where the row ends the prompt.
    """

    key: SequenceKey
    token_ids: tuple[int, ...]
    start_position: int
    block_table: tuple[int, ...]
    samples: tuple[SampleSpec, ...] = ()
    prompt_logprobs: int | None = None
    next_prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    epoch: int
    copies: tuple[PageCopy, ...]
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of the probability of `token_id`, after penalties, bias and grammar, before temperature and
    truncation; `top` are the most probable tokens with theirs, best first. Minus infinity is reported as -9999.0."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One drawn token. `grammar_finished`: the grammar allows nothing more after it, or only the end."""

    key: SequenceKey
    token_id: int
    logprob: TokenLogprob | None = None
    grammar_finished: bool = False


@dataclass(frozen=True, slots=True)
class RowFailure:
    """The row (or one choice that samples from it) failed alone: NaN logits, an exception in its own processing."""

    key: SequenceKey
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one SampledToken per SampleSpec of every row that didn't fail."""

    epoch: int
    sampled: tuple[SampledToken, ...]
    failures: tuple[RowFailure, ...] = ()
    prompt_logprobs: tuple[tuple[SequenceKey, tuple[TokenLogprob, ...]], ...] = ()
    duration_seconds: float = 0.0
