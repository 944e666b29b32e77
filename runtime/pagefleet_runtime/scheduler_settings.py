"""What the scheduler is told: its settings at start, and the limit of one step."""

from dataclasses import dataclass
from typing import Literal

from pagefleet_runtime.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    num_blocks: int
    block_size: int
    max_length_tokens: int
    max_sequences: int
    max_queue: int
    queue_timeout_seconds: int
    policy: Literal["FCFS", "Priority"]
    prefix_sharing_mode: Literal["Disabled", "Service", "Tenant"]
    retention_ttl_seconds: int | None
    swap_mode: Literal["Recompute", "Disabled"]
    watermark_percent: int
    eos_token_ids: tuple[int, ...] = ()
    digest_bytes: int = 16  # of a prefix's key

    @property
    def sharing(self) -> bool:
        return self.prefix_sharing_mode != "Disabled"

    @property
    def reserving(self) -> bool:
        """Whether admission takes all blocks that a request may ever need."""
        return self.swap_mode == "Disabled"


@dataclass(frozen=True, slots=True)
class StepLimit:
    """What one step may take: `max_tokens` is hard, `seconds` is kept by prediction and yields to progress."""

    max_tokens: int | None
    seconds: float
    cost: StepCost
