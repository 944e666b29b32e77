"""The operations on pages by the Triton kernels, for NVIDIA and AMD.

Importing this needs Triton; running it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1) and CPU tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagefleet_kernels.cpu.cache import Rotation
from pagefleet_kernels.kv_write import check_kv_write
from pagefleet_kernels.kv_write.gpu import kv_write_triton
from pagefleet_kernels.page_copy.gpu import page_copy_triton
from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.configs import Chip, has_tiles
from pagefleet_kernels.paged_attention.gathered import gathered_attention
from pagefleet_kernels.paged_attention.gpu import cache_kind, chip_of, paged_attention_triton
from pagefleet_kernels.paged_attention.tiles import StepTables, TableSizes, cut_tiles
from pagefleet_kernels.pages import Writer
from pagefleet_kernels.quantised_kv import CacheScales


@dataclass(frozen=True, slots=True)
class TritonWriter:
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    scales: CacheScales | None

    def write(
        self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, rotation: Rotation | None = None
    ) -> None:
        """Tokens of slot -1 are written nowhere."""
        assert rotation is None, "fused layers need the C++ kernels"
        check_kv_write(key, value, self.key_pages, self.value_pages, slots)
        kv_write_triton(key, value, self.key_pages, self.value_pages, slots, self.scales)


class TritonDecodes:
    """Steps of one query a row in tables that stay where they are."""

    def __init__(self, num_rows: int, pages_per_row: int, block_size: int, device: torch.device) -> None:
        self._tables = StepTables(TableSizes(num_rows, num_rows, pages_per_row), device)
        # To whoever launches, all of it is padding: what is none stands in the tables.
        self.batch = AttentionBatch((), block_size, num_padding=num_rows, plans={StepTables: self._tables})

    def load(self, rows: Sequence[BatchRow]) -> None:
        batch = AttentionBatch(tuple(rows), self.batch.block_size)
        self._tables.load(batch, cut_tiles(batch, tokens_per_tile=1))


@dataclass(frozen=True, slots=True)
class TritonPages:
    """The kernels for one chip; attention of sizes that there are no tiles for is plain PyTorch's."""

    chip: Chip
    decodes = TritonDecodes

    @property
    def name(self) -> str:
        return f"Triton for {self.chip.family}"

    def writer(self, key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales | None = None) -> Writer:
        return TritonWriter(key_pages, value_pages, scales)

    def why_plain(self, query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
        head_size, group = max(query.shape[2], value_pages.shape[3]), query.shape[1] // key_pages.shape[2]
        if has_tiles(self.chip.family, cache_kind(key_pages.dtype), head_size, group):
            return None
        return f"Triton's kernels have no tiles for heads of {head_size} in groups of {group}"

    def attend(self, call: AttentionCall) -> torch.Tensor:
        reason = self.why_plain(call.query, call.key_pages, call.value_pages)
        if reason is not None:
            if StepTables in call.batch.plans:
                raise ValueError(reason)
            return gathered_attention(call)
        return paged_attention_triton(call, self.chip)

    def copy(self, buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
        page_copy_triton(buffer, copies)


def triton_pages(device: torch.device) -> TritonPages:
    """Return the kernels for a GPU, tried once: what a driver or a compiler lacks shows in the first launch only.

    Raises ValueError where there are no tiles for the chip, and whatever Triton raises.
    """
    pages = TritonPages(chip_of(device))
    pages.copy(torch.zeros(2, 16, dtype=torch.uint8, device=device), [(0, 1)])
    torch.cuda.synchronize(device)
    return pages
