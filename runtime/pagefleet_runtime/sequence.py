"""What the scheduler keeps of a request, and of each of its choices while it computes them.

A sequence's tokens, how many of them are computed, and its block table are all that decides what it does next.
"""

from dataclasses import dataclass, field
from enum import Enum

from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.prefix_index import Node
from pagefleet_runtime.request import GenerationRequest, SequenceKey


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False, slots=True)
class RequestState:
    """One request and its open choices. Until the prompt is computed, one sequence stands for all choices."""

    request: GenerationRequest
    order: int  # place in the order of arrival
    submitted_seconds: float
    namespace: str | None  # of the prefix index; None: shares nothing
    open_choices: "dict[int, Sequence]" = field(default_factory=dict)
    forked: bool = False
    started: bool = False  # admitted at least once
    waiting_sequences: int = 0
    cached_tokens: int = 0
    reserve: list[int] = field(default_factory=list)  # blocks taken ahead of need
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs_delivered: bool = False
    reasons: set[str] = field(default_factory=set)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether some tokens of the prompt must run to get their logprobs."""
        return self.request.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length - 1

    def sequences(self) -> "tuple[Sequence, ...]":
        """The sequences of the open choices, each once."""
        return tuple(dict.fromkeys(self.open_choices.values()))


Rank = tuple[int, int, int]


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice, or a request's prompt before its choices part."""

    state: RequestState
    key: SequenceKey
    rank: Rank  # who goes first: priority, arrival, choice
    outputs: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is in the table's blocks, confirmed
    table: list[int] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.WAITING
    epoch: int | None = None  # of the step that runs it now
    # The end of its chain in the prefix index, at `chain.depth` full blocks; None: nothing of it is findable.
    chain: Node | None = None
    digests: list[bytes] = field(default_factory=list)  # of its full blocks, as far as they were needed
    recompute_end: int = 0  # tokens before this were computed once and lost
    recompute_cause: str = ""
    ticket: int = 0  # of its entry in the waiting queue
    passed: int = 0  # how often it was overtaken since it was preempted
    waits_for_block: bool = False  # its next block is being computed for another sequence

    @property
    def total(self) -> int:
        return self.state.prompt_length + len(self.outputs)

    @property
    def uncomputed(self) -> int:
        return self.state.prompt_length + len(self.outputs) - self.computed

    @property
    def num_choices(self) -> int:
        """How many choices this sequence stands for."""
        return 1 if self.state.forked else len(self.state.open_choices)

    @property
    def reusable(self) -> int:
        """How many tokens may come from the prefix index: all but the last, and none whose logprobs are wanted."""
        if self.state.lacks_prompt_logprobs:
            return min(self.total - 1, len(self.state.prompt_logprobs))
        return self.total - 1

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Return the tokens at positions start to end - 1, of prompt and outputs alike."""
        prompt = self.state.request.prompt_ids
        length = len(prompt)
        if end <= length:
            return prompt[start:end]
        if start >= length:
            return tuple(self.outputs[start - length : end - length])
        return prompt[start:] + tuple(self.outputs[: end - length])
