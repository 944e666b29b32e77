"""The engine's figures right after a step, as one value. Every gauge and counter comes from here."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Gauges are now; counters are since start and only grow. Blocks: free + cached + live == total."""

    # gauges
    step_finished_seconds: float = 0.0  # time.monotonic() of the last finished step (or of start)
    epoch: int = 0
    blocks_total: int = 0  # the budget in force
    blocks_free: int = 0
    blocks_cached: int = 0  # filled, findable, unreferenced
    blocks_live: int = 0  # referenced by at least one sequence
    slots_live: int = 0  # slots of live blocks that hold a token's KV, shared blocks once
    slots_allocated: int = 0  # slots of live blocks
    running: int = 0  # sequences
    waiting: int = 0  # requests
    queued_tokens: int = 0  # prompt tokens of waiting requests
    token_budget: int = 0
    # counters
    steps: int = 0
    step_seconds: float = 0.0
    prompt_tokens: int = 0  # of admitted requests, once each
    prefix_hit_tokens: int = 0  # at first admission
    prefix_missed_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0  # forward passes, prefill and decode
    copies_on_write: int = 0
    evicted_blocks: int = 0  # cached blocks taken for new use
    preemptions: dict[str, int] = field(default_factory=dict)  # by cause: blocks, budget
    recomputed_tokens: dict[str, int] = field(default_factory=dict)  # by cause
    # requests by reason: stop, length, cancelled, error, timeout, refused
    outcomes: dict[str, int] = field(default_factory=dict)
