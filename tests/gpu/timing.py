"""How long work takes on a device: medians, with the cache flushed before each round."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# mypy: disable-error-code="no-untyped-call"
import torch

Work = Callable[[], object]


class Stopwatch(Protocol):
    def seconds(self, work: Work) -> float:
        """Return the median of several rounds, each after other memory was touched."""
        ...


@dataclass(frozen=True, slots=True)
class GpuStopwatch:
    """Times a captured graph of the work, so that the launches' cost on the host isn't in it."""

    device: torch.device
    rounds: int = 9
    flushed_bytes: int = 256 << 20

    def seconds(self, work: Work) -> float:
        work()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return self._median(graph.replay)

    def eager_seconds(self, work: Work) -> float:
        """For what can't be captured, such as copies to memory of the host."""
        work()
        return self._median(work)

    def _median(self, work: Work) -> float:
        flush = torch.empty(self.flushed_bytes, dtype=torch.uint8, device=self.device)
        times = []
        for _ in range(self.rounds):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) / 1e3)
        return statistics.median(times)


@dataclass(frozen=True, slots=True)
class HostStopwatch:
    """Times once, on the host: enough to try the measurement where there is no GPU."""

    def seconds(self, work: Work) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    eager_seconds = seconds
