"""Every way to compute the operations on pages that this machine can try. What must hold on all of them takes its
parameters from here, so that a new way is one more line; a mode of model.kernels without one fails a test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pagefleet_kernels.choice import PLAIN, Kernels, Mode, choose_kernels
from pagefleet_kernels.cpu.targets import NATIVE, X86_TARGETS, Target, choose_target, this_machine
from pagefleet_kernels.pages import CppPages
from tests.kernels.cpu_libraries import load, tested_targets


@dataclass(frozen=True, slots=True)
class KernelPath:
    """`load` takes the folder of compiled code. What is interpreted runs in a child process alone, and slowly; what is
    extra is compiled for nothing else than the long tests."""

    mode: Mode
    load: Callable[[Path], Kernels]
    detail: str = ""
    interpreted: bool = False
    extra: bool = False

    def __str__(self) -> str:
        return f"{self.mode}-{self.detail}" if self.detail else self.mode


def _plain(cache: Path) -> Kernels:
    return PLAIN


def _cpp(target: Target, cache: Path) -> Kernels:
    return Kernels(CppPages(load(target, cache)), "library")


def _numba(cache: Path) -> Kernels:
    chosen = choose_kernels("numba", torch.float32, cache)
    assert chosen.pages.name == "numba", chosen.notes
    return chosen


def _triton(cache: Path) -> Kernels:
    # Only where a child process has turned Triton's interpreter on: the kernels are defined by the import.
    from pagefleet_kernels.paged_attention.configs import Chip
    from pagefleet_kernels.triton_pages import TritonPages

    return Kernels(TritonPages(Chip("sm_90", 132)))


def _runnable_targets() -> tuple[Target, ...]:
    machine, flags = this_machine()
    if choose_target(machine, flags) is NATIVE:
        return (NATIVE,)
    return tuple(target for target in X86_TARGETS if target.needs <= flags)


PATHS = (
    KernelPath("plain", _plain),
    *(
        KernelPath("cpp", partial(_cpp, target), target.name, extra=target not in tested_targets())
        for target in _runnable_targets()
    ),
    KernelPath("numba", _numba),
    KernelPath("triton", _triton, "interpreted", interpreted=True),
)
