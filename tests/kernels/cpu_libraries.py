"""The compilations of the C++ library that tests run: the best that this machine can, and the two narrower ones."""

from pathlib import Path

import pytest

from pagefleet_kernels.cpu import CpuLibrary, load_library
from pagefleet_kernels.cpu.targets import NATIVE, X86_TARGETS, Target, choose_target, this_machine


def tested_targets() -> list[Target]:
    machine, flags = this_machine()
    if choose_target(machine, flags) is NATIVE:
        return [NATIVE]
    runnable = [target for target in X86_TARGETS if target.needs <= flags]
    # What lies between the best and the narrow ones is the best's code without products of bfloat16 or int8.
    return [*runnable[:1], *runnable[1:][-2:]]


def load(target: Target, cache: Path) -> CpuLibrary:
    """Skip the test where the machine has no compiler."""
    library = load_library(cache, target)
    if not isinstance(library, CpuLibrary):
        pytest.skip(f"this machine can't compile the CPU kernels: {library.reason}")
    return library
