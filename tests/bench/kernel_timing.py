"""Timing for the kernel benchmark: variants in turn, one ratio a round, so that a slow minute hits all of them."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

Variants = Mapping[str, Callable[[], object]]


def seconds(function: Callable[[], object], least_seconds: float = 0.02) -> float:
    """Return what one call takes, from as many calls in a row as fill the time. One call before them warms up."""
    function()
    calls = 0
    started = time.perf_counter()
    while True:
        function()
        calls += 1
        elapsed = time.perf_counter() - started
        if elapsed >= least_seconds:
            return elapsed / calls


def rounds(variants: Variants, count: int) -> dict[str, list[float]]:
    """Return each variant's seconds, round by round."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(count):
        for name, function in variants.items():
            times[name].append(seconds(function))
    return times


def ratios(numerator: list[float], denominator: list[float]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(numerator, denominator, strict=True))


def describe(name: str, times: list[float], amount: float, unit: str) -> str:
    return f"  {name:<28} {median(times) * 1e6:10.0f} us {amount / median(times) / 1e9:8.1f} {unit}"


def cycle(function: Callable[[int], object], count: int) -> Callable[[], object]:
    """Return a function that calls `function` for each of `count` copies of its data, as a model's layers do, so that
    the data comes from memory."""

    def run() -> None:
        for index in range(count):
            function(index)

    return run


class Stream:
    """A plain read of more memory than caches hold: what the machine's memory gives at this moment."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory.view(torch.float32).fill_(1.0)

    @property
    def num_bytes(self) -> int:
        return self._memory.numel() * 4

    def __call__(self) -> None:
        self._memory.sum()
