"""Which implementation runs the operations on a CPU: decided once, at start, and said in sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from pagefleet_kernels.cpu.library import CpuLibrary, CpuUnavailable, load_library
from pagefleet_kernels.cpu.targets import this_machine
from pagefleet_kernels.pages import PLAIN_PAGES, CppPages, PageKernels
from pagefleet_kernels.prepacked_linear import why_not_onednn
from pagefleet_kernels.prepacked_linear.cpu import TYPES

_LINEARS = {
    "library": "weights packed for it",
    "onednn": "weights packed for oneDNN",
    "torch": "torch's own linear layers",
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The choice. `notes` say what is missing and what that costs."""

    pages: PageKernels = PLAIN_PAGES
    linears: Literal["library", "onednn", "torch"] = "torch"
    notes: tuple[str, ...] = ()

    @property
    def library(self) -> CpuLibrary | None:
        """What fused layers and packed linear layers run on beside the operations on pages."""
        return self.pages.library if isinstance(self.pages, CppPages) else None

    @property
    def description(self) -> str:
        return f"{self.pages.name}, {_LINEARS[self.linears]}"


# Every operation as its reference has it, or as torch's own functions allow.
PLAIN = Kernels()


def choose_kernels(mode: Literal["auto", "plain"], dtype: torch.dtype, cache: Path | None = None) -> Kernels:
    """Return the fastest kernels that this CPU and its compiler allow for a model of `dtype`, or plain PyTorch's.

    `cache` is where the compiled library is kept; compiling takes some ten seconds once.
    """
    if mode == "plain":
        return PLAIN
    notes = []
    loaded = load_library(cache)
    if isinstance(loaded, CpuUnavailable):
        notes.append(f"kernels are plain PyTorch, many times slower at decoding: {loaded.reason}")
    library = loaded if isinstance(loaded, CpuLibrary) else None
    linears, reason = _choose_linears(library, dtype)
    if reason is not None:
        notes.append(f"linear layers are torch's own, up to six times slower at small batches: {reason}")
    return Kernels(PLAIN_PAGES if library is None else CppPages(library), linears, tuple(notes))


def _choose_linears(
    library: CpuLibrary | None, dtype: torch.dtype
) -> tuple[Literal["library", "onednn", "torch"], str | None]:
    has_matrix_unit = dtype == torch.bfloat16 and "amx_bf16" in this_machine()[1]
    if library is not None and dtype in TYPES and not has_matrix_unit:
        return "library", None
    reason = why_not_onednn(dtype)
    return ("onednn", None) if reason is None else ("torch", reason)
