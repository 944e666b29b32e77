"""The operations on pages as one object that whoever holds a cache is given: what computes is its own affair.

`TritonPages` stands in a file of its own, because it needs Triton.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagefleet_kernels.cpu.cache import PageWriter, Rotation
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.kv_write import kv_write
from pagefleet_kernels.page_copy.cpu import page_copy_cpu
from pagefleet_kernels.page_copy.reference import page_copy_reference
from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu, why_not
from pagefleet_kernels.paged_attention.gathered import gathered_attention
from pagefleet_kernels.quantised_kv import CacheScales


class Writer(Protocol):
    """Writes keys and values to one layer's pages."""

    def write(
        self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, rotation: Rotation | None = None
    ) -> None:
        """As kv_write has it; with a rotation, which fused layers have, as rotary_kv_write."""
        ...


class Decodes(Protocol):
    """Steps of one query a row whose tables stay at one address, so that a graph that was recorded once serves all."""

    batch: AttentionBatch

    def load(self, rows: Sequence[BatchRow]) -> None:
        """Make `rows` the step that whoever uses `batch` runs; what is behind them is padding."""
        ...


# Makes room for steps of up to so many rows of so many pages of that size.
MakeDecodes = Callable[[int, int, int, torch.device], Decodes]


class PageKernels(Protocol):
    """Implementations of the operations; arguments are as those operations' public functions checked them."""

    @property
    def name(self) -> str: ...

    def writer(
        self, key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales | None = None
    ) -> Writer: ...

    def why_plain(self, query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
        """Return what of these types and sizes the kernels don't know, so that it is plain PyTorch that attends; else
        None. Only types and shapes are read."""
        ...

    def attend(self, call: AttentionCall) -> torch.Tensor: ...

    def copy(self, buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None: ...

    @property
    def decodes(self) -> MakeDecodes | None:
        """None where each step is laid out anew. Kernels that have it write tokens of slot -1 nowhere."""
        ...


@dataclass(frozen=True, slots=True)
class PlainWriter:
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    scales: CacheScales | None

    def write(
        self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, rotation: Rotation | None = None
    ) -> None:
        assert rotation is None, "fused layers need the C++ kernels"
        kv_write(key, value, self.key_pages, self.value_pages, slots, scales=self.scales)


class PlainPages:
    """Plain PyTorch, on any device."""

    name = "plain PyTorch"
    decodes = None

    def writer(self, key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales | None = None) -> Writer:
        return PlainWriter(key_pages, value_pages, scales)

    def why_plain(self, query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
        return None  # nothing else was chosen

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return gathered_attention(call)

    def copy(self, buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
        page_copy_reference(buffer, copies)


PLAIN_PAGES = PlainPages()


@dataclass(frozen=True, slots=True)
class CppPages:
    """The C++ library, on a CPU; attention of types and sizes that it doesn't know is plain PyTorch's."""

    library: CpuLibrary
    decodes = None

    @property
    def name(self) -> str:
        return f"C++ for {self.library.target}"

    def writer(self, key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales | None = None) -> Writer:
        return PageWriter(self.library, key_pages, value_pages, scales)

    def why_plain(self, query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
        return why_not(query, key_pages, value_pages)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        if self.why_plain(call.query, call.key_pages, call.value_pages) is not None:
            return gathered_attention(call)
        return paged_attention_cpu(self.library, call)

    def copy(self, buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
        page_copy_cpu(self.library, buffer, copies)
