"""What a measurement of the kernels' benchmark gets, and how it is registered: `kernels.py` lists them all."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_kernels.cpu import CpuLibrary, CpuUnavailable
from tests.bench.kernel_goals import CannotMeasure, Variant

# Measured variants by the key of their goal.
Findings = dict[str, tuple[Variant, ...]]


@dataclass(frozen=True, slots=True)
class Bench:
    """The machine's kernels, how many rounds are run (medians count), where figures beside the goals are said, and
    where compiled code is kept (None: the user's cache folder)."""

    loaded: CpuLibrary | CpuUnavailable
    rounds: int
    say: Callable[[str], None]
    cache: Path | None = None

    @property
    def library(self) -> CpuLibrary:
        """The C++ kernels. Raises CannotMeasure where there are none."""
        if isinstance(self.loaded, CpuUnavailable):
            raise CannotMeasure(self.loaded.reason)
        return self.loaded


@dataclass(frozen=True, slots=True)
class Measurement:
    """One group of rows that are timed in turn. `measure` gives variants for the goals that it names, or raises
    CannotMeasure."""

    name: str
    goals: tuple[str, ...]
    measure: Callable[[Bench], Findings]
