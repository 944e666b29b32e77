"""From traces to figures: pure arithmetic, so that tests can hold it to known answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from tests.bench.client import Trace


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile. Raises ValueError on no values: no figure is better than a made-up one."""
    if not values:
        raise ValueError("a percentile of nothing was asked")
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of one workload on one server."""

    output_tokens_per_second: float
    ttft_p50_seconds: float
    ttft_p99_seconds: float
    gap_p50_seconds: float
    gap_p99_seconds: float
    gap_max_seconds: float

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> "RunFigures":
        begin = min(trace.sent for trace in traces)
        end = max(trace.tokens[-1] for trace in traces)
        ttfts = [trace.ttft_seconds for trace in traces]
        gaps = [gap for trace in traces for gap in trace.gaps_seconds]
        return cls(
            output_tokens_per_second=sum(trace.num_tokens for trace in traces) / (end - begin),
            ttft_p50_seconds=percentile(ttfts, 50),
            ttft_p99_seconds=percentile(ttfts, 99),
            gap_p50_seconds=percentile(gaps, 50),
            gap_p99_seconds=percentile(gaps, 99),
            gap_max_seconds=max(gaps),
        )

    def __str__(self) -> str:
        return (
            f"{self.output_tokens_per_second:.1f} tokens/s,"
            f" TTFT p50/p99 {self.ttft_p50_seconds:.2f}/{self.ttft_p99_seconds:.2f} s,"
            f" between tokens p50/p99/max {self.gap_p50_seconds * 1e3:.0f}"
            f"/{self.gap_p99_seconds * 1e3:.0f}/{self.gap_max_seconds * 1e3:.0f} ms"
        )


def decode_tokens_per_second(traces: Sequence[Trace]) -> float:
    """Of streams that ran one after the other: what came after each one's first token."""
    tokens = sum(trace.num_tokens - 1 for trace in traces)
    return tokens / sum(trace.tokens[-1] - trace.tokens[0] for trace in traces)


@dataclass(frozen=True, slots=True)
class Goal:
    """One row of the report: a ratio or a share, what was expected of it, and what came out."""

    name: str
    expected: float
    reached: float
    at_least: bool  # False: at most
    runs: tuple[float, ...]  # the single runs behind the median, in the order of the rounds
    unit: str = "times"

    @property
    def met(self) -> bool:
        return self.reached >= self.expected if self.at_least else self.reached <= self.expected

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        spread = ", ".join(f"{run:.3g}" for run in self.runs)
        verdict = "met" if self.met else "MISSED"
        return f"{self.name:<66} {sign} {self.expected:<6g} {self.reached:>8.3g} {self.unit:<7} {verdict:<7} [{spread}]"


@dataclass(frozen=True, slots=True)
class NotRun:
    """A row that nobody measured, which counts as not met."""

    name: str
    expected: float
    reason: str
    met: bool = False

    def line(self) -> str:
        return f"{self.name:<66} >= {self.expected:<6g} {'-':>8} {'times':<7} NOT RUN [{self.reason}]"


def goal(name: str, expected: float, runs: Sequence[float], *, at_least: bool = True, unit: str = "times") -> Goal:
    return Goal(name, expected, median(runs), at_least, tuple(runs), unit)
