"""Where a decode step spends its time: `python -m tests.bench.step_profile` prints the tables of kernels/README.md.

The layers' parts are counted by the C++ library itself, the head and sampling by clocks around them.
"""

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from pagefleet_runtime.executor import Executor
from pagefleet_runtime.plan import StepPlan
from pagefleet_runtime.thread_settings import settle_threads
from tests.bench.steps import Step, load_executor

STEPS = {
    "1 row": Step(1, 330),
    "8 rows": Step(8, 330),
    "32 rows": Step(32, 330),
    "prefill of 512": Step(chunk=512),
}


def seconds(executor: Executor, step: Step, repeats: int) -> float:
    plan = step.plan()
    executor.execute(plan)  # wakes the threads
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        executor.execute(plan)
        times.append(time.perf_counter() - started)
    return median(times)


@contextmanager
def replaced(holder: Any, name: str, function: Any) -> Iterator[None]:
    kept = getattr(holder, name)
    setattr(holder, name, function)
    try:
        yield
    finally:
        setattr(holder, name, kept)


@contextmanager
def timed(holder: Any, name: str, times: list[float]) -> Iterator[None]:
    """Append what each call of the holder's function takes."""
    function = getattr(holder, name)

    def call(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments, **named)
        times.append(time.perf_counter() - started)
        return result

    with replaced(holder, name, call):
        yield


def counters(executor: Executor, plan: StepPlan) -> Any:
    """Return where the layers of the model that the executor runs count their parts' time."""
    from pagefleet_runtime.models.fused import FusedLayer

    found = []
    forward = FusedLayer.forward

    def seen(layer: FusedLayer, *arguments: Any, **named: Any) -> Any:
        found.append(layer.memory.nanoseconds)
        return forward(layer, *arguments, **named)

    with replaced(FusedLayer, "forward", seen):
        executor.execute(plan)
    return found[0]


def profiled(executor: Executor, step: Step, repeats: int) -> dict[str, float]:
    """Return each part's seconds in one step, `rest` and `step` among them."""
    from pagefleet_kernels.decoder_layer.memory import PARTS
    from pagefleet_kernels.prepacked_linear import PrepackedLinear
    from pagefleet_runtime.model_executor import executor as executor_module

    plan, heads, samples = step.plan(), list[float](), list[float]()
    nanoseconds = counters(executor, plan)
    before = nanoseconds.tolist()
    # Beside the layers, which are one call each, the head is the only linear layer.
    with timed(PrepackedLinear, "forward", heads), timed(executor_module, "sample_tokens", samples):
        started = time.perf_counter()
        for _ in range(repeats):
            executor.execute(plan)
        total = time.perf_counter() - started
    spent = {part: (now - then) / 1e9 for part, now, then in zip(PARTS, nanoseconds.tolist(), before, strict=True)}
    spent |= {"head": sum(heads), "sampling": sum(samples)}
    spent |= {"rest": total - sum(spent.values()), "step": total}
    return {name: value / repeats for name, value in spent.items()}


def table(columns: Sequence[str], rows: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"| ms | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{row[c] * 1e3:.1f}' for c in columns)} |" for name, row in rows.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the median counts")
    parser.add_argument("--steps", type=int, default=20, help="steps of each size in a round")
    options = parser.parse_args()
    settle_threads(os.environ)  # as the engine's process does, before torch is imported
    executors = {"plain PyTorch": load_executor("plain"), "C++, packed, fused": load_executor("auto")}
    rounds = [
        {
            name: {size: seconds(executor, step, options.steps) for size, step in STEPS.items()}
            for name, executor in executors.items()
        }
        for _ in range(options.rounds)
    ]
    medians = {name: {size: median(one[name][size] for one in rounds) for size in STEPS} for name in executors}
    profiles = [
        profiled(executors["C++, packed, fused"], STEPS["32 rows"], options.steps) for _ in range(options.rounds)
    ]
    *named, rest, step = profiles[0]
    columns = [*sorted(named, key=lambda part: -profiles[0][part]), rest, step]
    print(table(columns, {"32 rows": {part: median(one[part] for one in profiles) for part in columns}}))
    print(table(list(STEPS), medians))


if __name__ == "__main__":
    main()
