"""Which implementation runs the operations on a CPU: decided once, at start, and said in sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from pagefleet_kernels.cpu.library import CpuLibrary, CpuUnavailable, load_library
from pagefleet_kernels.prepacked_linear import why_not_prepacked


@dataclass(frozen=True, slots=True)
class Kernels:
    """The choice. `notes` say what is missing and what that costs."""

    library: CpuLibrary | None = None
    packs_linears: bool = False
    notes: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        linears = "packed weights" if self.packs_linears else "torch's own linear layers"
        return f"{'plain PyTorch' if self.library is None else f'C++ for {self.library.target}'}, {linears}"


# Every operation as its reference has it, or as torch's own functions allow.
PLAIN = Kernels()


def choose_kernels(mode: Literal["auto", "plain"], dtype: torch.dtype, cache: Path | None = None) -> Kernels:
    """Return the fastest kernels that this CPU and its compiler allow for a model of `dtype`, or plain PyTorch's.

    `cache` is where the compiled library is kept; compiling takes some ten seconds once.
    """
    if mode == "plain":
        return PLAIN
    notes = []
    library = load_library(cache)
    if isinstance(library, CpuUnavailable):
        notes.append(f"kernels are plain PyTorch, many times slower at decoding: {library.reason}")
    reason = why_not_prepacked(dtype)
    if reason is not None:
        notes.append(f"linear layers are torch's own, up to six times slower at small batches: {reason}")
    return Kernels(library if isinstance(library, CpuLibrary) else None, reason is None, tuple(notes))
