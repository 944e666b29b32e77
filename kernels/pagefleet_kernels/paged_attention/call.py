"""One layer's attention in one step, as a value that every implementation takes."""

from dataclasses import dataclass

import torch

from pagefleet_kernels.paged_attention.batch import AttentionBatch
from pagefleet_kernels.quantised_kv import CacheScales


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What `paged_attention` says of its arguments; whoever takes a call may trust that they were checked there."""

    query: torch.Tensor  # [T, Hq, D]
    key_pages: torch.Tensor  # [N, block_size, H, D]
    value_pages: torch.Tensor  # [N, block_size, H, Dv]
    batch: AttentionBatch
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [Hq]
    scales: CacheScales | None = None

    @property
    def group(self) -> int:
        """How many query heads read one key-value head."""
        return self.query.shape[1] // self.key_pages.shape[2]

    def new_output(self) -> torch.Tensor:  # [T, Hq, Dv]
        return self.query.new_empty(*self.query.shape[:2], self.value_pages.shape[3])
