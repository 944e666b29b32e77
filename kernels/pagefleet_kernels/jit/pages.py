"""The operations on pages by numba: PageKernels for a CPU without a C++ compiler."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagefleet_kernels.jit.library import NumbaLibrary
from pagefleet_kernels.kv_write.jit import NumbaWriter
from pagefleet_kernels.page_copy.reference import page_copy_reference
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.gathered import gathered_attention
from pagefleet_kernels.paged_attention.jit import paged_attention_numba, why_not
from pagefleet_kernels.pages import PlainWriter, Writer
from pagefleet_kernels.quantised_kv import CacheScales


@dataclass(frozen=True, slots=True)
class NumbaPages:
    """numba's decode attention and writes; what it doesn't know, prefill and page copies are plain PyTorch's."""

    library: NumbaLibrary
    decodes = None

    @property
    def name(self) -> str:
        return "numba"

    def writer(self, key_pages: torch.Tensor, value_pages: torch.Tensor, scales: CacheScales | None = None) -> Writer:
        if scales is not None:
            return PlainWriter(key_pages, value_pages, scales)
        return NumbaWriter(self.library, key_pages, value_pages)

    def why_plain(self, query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor) -> str | None:
        return why_not(query, key_pages, value_pages)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        if self.why_plain(call.query, call.key_pages, call.value_pages) is not None:
            return gathered_attention(call)
        return paged_attention_numba(self.library, call)

    def copy(self, buffer: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
        page_copy_reference(buffer, copies)
