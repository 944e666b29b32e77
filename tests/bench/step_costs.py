"""How long the real engine's steps take, for the simulated one to play: `python -m tests.bench.step_costs`.

It measures a grid of steps on SmolLM2, writes the table that pagefleet_runtime.simulation reads, and compares the
table with steps that it wasn't made from. `--check` only compares, with the table that is there.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pagefleet_runtime.simulation
from pagefleet_runtime.executor import Executor
from pagefleet_runtime.models.machine import read_machine
from pagefleet_runtime.step_cost import StepCost, StepLoad, fit_step_cost, load_of
from pagefleet_runtime.thread_settings import settle_threads
from tests.bench.steps import Step, load_executor

TABLE = Path(pagefleet_runtime.simulation.__file__).with_name("step_costs.json")
MODEL_NAME = "smollm2-135m"
TOLERANCE = 0.15


GRID = (
    *(Step(rows, context) for rows in (1, 4, 16, 48) for context in (16, 300, 1000)),
    *(Step(chunk=chunk, behind=behind) for chunk in (16, 64, 256, 512) for behind in (0, 1000)),
    *(Step(rows, 300, chunk, 300) for rows in (4, 16) for chunk in (32, 128)),
)


def unseen_steps(count: int, seed: int) -> list[Step]:
    """Return steps like those of a server under load, at sizes that the grid doesn't have."""
    draw = random.Random(seed)
    steps = []
    for _ in range(count):
        rows, context = draw.choice((0, 1, 3, 6, 12, 24, 40)), draw.randrange(20, 1000)
        chunk = draw.choice((0, 0, 24, 48, 100, 200, 400)) if rows else draw.choice((24, 48, 100, 200, 400))
        steps.append(Step(rows, context, chunk, draw.randrange(0, 800)))
    return steps


@contextmanager
def undisturbed(realtime: bool) -> Iterator[None]:
    """Let this process's threads run before all others; those get their time in the pauses between steps."""
    kind, priority = (os.SCHED_FIFO, 1) if realtime else (os.SCHED_OTHER, 0)
    _schedule(kind, priority)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, 0)


def _schedule(kind: int, priority: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread.name), kind, os.sched_param(priority))


def measure(executor: Executor, steps: Sequence[Step], rounds: int) -> list[tuple[Step, StepLoad, float]]:
    """Return each step with its load and its least time over interleaved rounds: what a busy neighbour adds isn't the
    engine's."""
    plans = [step.plan() for step in steps]
    best = [float("inf")] * len(plans)
    for _ in range(rounds):
        for index, plan in enumerate(plans):
            started = time.perf_counter()
            executor.execute(plan)
            seconds = time.perf_counter() - started
            best[index] = min(best[index], seconds)
            time.sleep(seconds)
    return [(step, load_of(plan), seconds) for step, plan, seconds in zip(steps, plans, best, strict=True)]


def compare(cost: StepCost, measured: Sequence[tuple[Step, StepLoad, float]]) -> bool:
    """Print each step's time beside the table's. Return whether the median and nine of ten are within the tolerance."""
    errors = []
    for step, load, seconds in measured:
        predicted = cost.seconds(load)
        errors.append(predicted / seconds - 1)
        print(f"  {asdict(step)}: {seconds * 1e3:.1f} ms, table {predicted * 1e3:.1f} ms ({errors[-1]:+.0%})")
    within = sum(abs(error) <= TOLERANCE for error in errors)
    total = sum(seconds for _, _, seconds in measured)
    whole = sum(cost.seconds(load) for _, load, _ in measured) / total - 1
    median = statistics.median(abs(error) for error in errors)
    print(f"{within} of {len(errors)} steps within {TOLERANCE:.0%}, median {median:.1%}, all together {whole:+.1%}")
    return median <= TOLERANCE and abs(whole) <= TOLERANCE and within >= 0.9 * len(errors)


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{read_machine().num_threads} threads of {name} in bfloat16"


def _write(cost: StepCost) -> None:
    coefficients: dict[str, Any] = asdict(cost)
    del coefficients["correction"]  # follows what is measured while serving
    table = {"model": MODEL_NAME, "machine": _machine(), "cost": coefficients}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the table that is there")
    parser.add_argument("--rounds", type=int, default=7, help="how often each step is timed; the least time counts")
    parser.add_argument(
        "--realtime", action="store_true", help="run before everything else on this machine, as root on a busy one"
    )
    options = parser.parse_args()
    settle_threads(os.environ)  # as the engine's process does, before torch is imported
    executor = load_executor("auto")
    with undisturbed(options.realtime):
        return _run(executor, options.rounds, options.check)


def _run(executor: Executor, rounds: int, check: bool) -> int:
    if not check:
        measured = measure(executor, GRID, rounds)
        cost = fit_step_cost([(load, seconds) for _, load, seconds in measured])
        print("the grid, beside the table made from it:")
        compare(cost, measured)
        _write(cost)
    cost = StepCost(**json.loads(TABLE.read_text("utf-8"))["cost"])
    print("steps that the table wasn't made from:")
    return 0 if compare(cost, measure(executor, unseen_steps(16, seed=1), rounds)) else 1


if __name__ == "__main__":
    sys.exit(main())
