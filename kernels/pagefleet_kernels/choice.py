"""Which implementation runs the operations: decided once, at start, and said in sentences."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from pagefleet_kernels.cpu.library import CpuLibrary, load_library
from pagefleet_kernels.cpu.targets import this_machine
from pagefleet_kernels.jit import NumbaLibrary, load_numba
from pagefleet_kernels.jit.pages import NumbaPages
from pagefleet_kernels.paged_attention.jit import why_not_stored
from pagefleet_kernels.pages import PLAIN_PAGES, CppPages, PageKernels
from pagefleet_kernels.prepacked_linear import Quantization, why_not_onednn
from pagefleet_kernels.prepacked_linear.cpu import TYPES

Mode = Literal["auto", "cpp", "numba", "triton", "plain"]
_CPU = torch.device("cpu")
_LINEARS = {
    "library": "weights packed for it",
    "int8": "int8 weights packed for it",
    "onednn": "weights packed for oneDNN",
    "torch": "torch's own linear layers",
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The choice. `notes` say what is missing and what that costs."""

    pages: PageKernels = PLAIN_PAGES
    linears: Literal["library", "int8", "onednn", "torch"] = "torch"
    notes: tuple[str, ...] = ()

    @property
    def library(self) -> CpuLibrary | None:
        """What fused layers and packed linear layers run on beside the operations on pages."""
        return self.pages.library if isinstance(self.pages, CppPages) else None

    @property
    def quantization(self) -> Quantization:
        """What linear layers' weights are kept as; none is their own type."""
        return "int8" if self.linears == "int8" else "none"

    @property
    def unquantised(self) -> "Kernels":
        """The same on weights as they were given."""
        return replace(self, linears="library") if self.linears == "int8" else self

    @property
    def description(self) -> str:
        return f"{self.pages.name}, {_LINEARS[self.linears]}"


# Every operation as its reference has it, or as torch's own functions allow.
PLAIN = Kernels()


def choose_kernels(
    mode: Mode,
    dtype: torch.dtype,
    cache: Path | None = None,
    device: torch.device = _CPU,
    kv_dtype: torch.dtype | None = None,
) -> Kernels:
    """Return the fastest kernels that the device, its compiler and `mode` allow for a model of `dtype` whose pages hold
    `kv_dtype`, or else the same: on a GPU Triton's, on a CPU C++, else numba's; else plain PyTorch's. A mode that names
    one of them leaves plain PyTorch alone beside it.

    `cache` is where compiled code is kept; compiling takes some ten seconds once.
    """
    if mode == "plain":
        return PLAIN
    if device.type != "cpu":
        return _gpu_kernels(mode, device)
    pages, note = _choose_pages(mode, kv_dtype or dtype, cache)
    linears, reason = _choose_linears(pages.library if isinstance(pages, CppPages) else None, dtype)
    notes = [] if note is None else [note]
    if reason is not None:
        notes.append(f"linear layers are torch's own, up to six times slower at small batches: {reason}")
    return Kernels(pages, linears, tuple(notes))


class QuantizationUnavailable(Exception):
    """Why int8 weights can't be multiplied here."""


def with_int8_weights(kernels: Kernels) -> Kernels:
    """Return the kernels with linear layers on int8 codes. Raises QuantizationUnavailable where there is no C++: who
    asks for half the memory wants neither all of it nor steps of many times the length."""
    if kernels.library is None:
        raise QuantizationUnavailable("; ".join((f"kernels are {kernels.pages.name}", *kernels.notes)))
    return Kernels(kernels.pages, "int8")


def _gpu_kernels(mode: Mode, device: torch.device) -> Kernels:
    if mode in ("auto", "triton"):
        try:
            # Triton is imported where a GPU is used: CPU installations have none.
            from pagefleet_kernels.triton_pages import triton_pages

            return Kernels(triton_pages(device))
        except Exception as error:
            reason = f"Triton can't be used: {type(error).__name__}: {error}"
    else:
        reason = f"{mode} is for CPUs"
    return Kernels(notes=(f"kernels are plain PyTorch, which copies every context in every step: {reason}",))


def _choose_pages(mode: Mode, kv_dtype: torch.dtype, cache: Path | None) -> tuple[PageKernels, str | None]:
    """Return what runs the operations on pages, and what it costs that it isn't what comes before it."""
    if mode == "triton":
        return PLAIN_PAGES, "kernels are plain PyTorch, many times slower at decoding: Triton's need a GPU"
    reasons = []
    if mode != "numba":
        library = load_library(cache)
        if isinstance(library, CpuLibrary):
            return CppPages(library), None
        reasons.append(library.reason)
    if mode != "cpp":
        numba = _load_numba(kv_dtype, cache)
        if isinstance(numba, NumbaLibrary):
            cost = "kernels are numba's and layers aren't fused, so that a step takes two to four times as long"
            return NumbaPages(numba), f"{cost}: {reasons[0]}" if reasons else None
        reasons.append(numba)
    return PLAIN_PAGES, f"kernels are plain PyTorch, many times slower at decoding: {'; '.join(reasons)}"


def _load_numba(kv_dtype: torch.dtype, cache: Path | None) -> NumbaLibrary | str:
    reason = why_not_stored(kv_dtype)
    if reason is not None:
        return reason
    loaded = load_numba(cache)
    return loaded if isinstance(loaded, NumbaLibrary) else loaded.reason


def _choose_linears(
    library: CpuLibrary | None, dtype: torch.dtype
) -> tuple[Literal["library", "onednn", "torch"], str | None]:
    has_matrix_unit = dtype == torch.bfloat16 and "amx_bf16" in this_machine()[1]
    if library is not None and dtype in TYPES and not has_matrix_unit:
        return "library", None
    reason = why_not_onednn(dtype)
    return ("onednn", None) if reason is None else ("torch", reason)
