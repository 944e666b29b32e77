"""The engine's counters: each event once, never back."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    steps: int = 0
    step_seconds: float = 0.0
    step_finished_seconds: float = 0.0
    token_budget: int = 0  # of the last planned step; a gauge
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    copies_on_write: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    recomputed_tokens: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
