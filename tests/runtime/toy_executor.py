"""A model of one attention layer that can't be fooled: what it reads through the block table decides its next token.

A slot holds the token and its position. Pages that nobody may read are poisoned by the harness. Rows write before any
row reads, as in a real forward, and each row reads its whole context.
"""

from dataclasses import dataclass, field

from pagefleet_runtime.plan import Row, RowFailure, SampledToken, SampleSpec, StepPlan, StepResult, TokenLogprob
from pagefleet_runtime.request import SamplingParams, SequenceKey

VOCABULARY = 50
Slot = tuple[int, int] | None  # token, position; None is poison


def next_token(context: tuple[Slot, ...], params: SamplingParams, choice: int, outputs: tuple[int, ...]) -> int:
    """The model: a hash of all that was read, and of what a draw may depend on."""
    read = hash(tuple((-7, -7) if slot is None else slot for slot in context))
    draw = (params.seed, choice, len(outputs)) if params.temperature > 0 else ()
    penalty = outputs if params.frequency_penalty else ()
    return hash((read, draw, penalty)) % VOCABULARY


def logprob_of(context: tuple[Slot, ...], token: int) -> float:
    return -(hash((tuple((-7, -7) if slot is None else slot for slot in context), token)) % 1000) / 100


def reference_ids(
    prompt: tuple[int, ...], params: SamplingParams, choice: int = 0, eos: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """What one request alone gets from a dense cache."""
    outputs: tuple[int, ...] = ()
    while len(outputs) < params.max_tokens:
        context = tuple((token, position) for position, token in enumerate(prompt + outputs))
        token = next_token(context, params, choice, outputs)
        outputs += (token,)
        if token in params.stop_token_ids or (token in eos and not params.ignore_eos):
            break
    return outputs


def reference_prompt_logprobs(prompt: tuple[int, ...]) -> tuple[float, ...]:
    slots: tuple[Slot, ...] = tuple((token, position) for position, token in enumerate(prompt))
    return tuple(logprob_of(slots[: i + 1], prompt[i + 1]) for i in range(len(prompt) - 1))


@dataclass
class ToyExecutor:
    num_blocks: int
    block_size: int
    pages: list[list[Slot]] = field(default_factory=list)
    fail_keys: set[SequenceKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pages = [[None] * self.block_size for _ in range(self.num_blocks)]

    def poison(self, block: int, first_slot: int = 0) -> None:
        for slot in range(first_slot, self.block_size):
            self.pages[block][slot] = None

    def execute(self, plan: StepPlan) -> StepResult:
        for copy in plan.copies:
            self.pages[copy.target] = list(self.pages[copy.source])
        for row in plan.rows:
            self._write(row)
        sampled: list[SampledToken] = []
        failures: list[RowFailure] = []
        logprobs: list[tuple[SequenceKey, tuple[TokenLogprob, ...]]] = []
        for row in plan.rows:
            if row.key in self.fail_keys and not row.samples:
                failures.append(RowFailure(row.key, "NaN"))
                continue
            if row.prompt_logprobs is not None:
                logprobs.append((row.key, self._prompt_logprobs(row)))
            context = self._read(row, row.start_position + len(row.token_ids))
            for sample in row.samples:
                if sample.key in self.fail_keys:
                    failures.append(RowFailure(sample.key, "NaN"))
                else:
                    sampled.append(self._sample(sample, context))
        return StepResult(plan.epoch, tuple(sampled), tuple(failures), tuple(logprobs), 0.01)

    def _write(self, row: Row) -> None:
        for position, token in enumerate(row.token_ids, row.start_position):
            block = row.block_table[position // self.block_size]
            self.pages[block][position % self.block_size] = (token, position)

    def _read(self, row: Row, end: int) -> tuple[Slot, ...]:
        slots: list[Slot] = []
        for block in row.block_table:
            slots.extend(self.pages[block])
        return tuple(slots[:end])

    def _sample(self, sample: SampleSpec, context: tuple[Slot, ...]) -> SampledToken:
        outputs = tuple(sample.output_ids)
        return SampledToken(sample.key, next_token(context, sample.params, sample.key.choice_index, outputs))

    def _prompt_logprobs(self, row: Row) -> tuple[TokenLogprob, ...]:
        context = self._read(row, row.start_position + len(row.token_ids))
        return tuple(
            TokenLogprob(token, logprob_of(context[: row.start_position + i + 1], token))
            for i, token in enumerate(row.next_prompt_ids)
        )
