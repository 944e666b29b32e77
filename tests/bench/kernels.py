"""The benchmark of the CPU kernels: `python -m tests.bench.kernels`. Prints each row's goal and what came out, as
ratios of variants that ran in turn; exits with 1 unless every must is met. Absolute figures depend on the minute."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from pagefleet_kernels.cpu import CpuLibrary, load_library
from tests.bench.attention_rows import decode, mixed, order, prefill
from tests.bench.int8_linear_rows import int8_linears
from tests.bench.kernel_bench import Bench, Findings, Measurement
from tests.bench.kernel_goals import CannotMeasure, Result, results_of, table
from tests.bench.linear_rows import prepacked
from tests.bench.numba_rows import numba_decode
from tests.bench.page_rows import swap, write
from tests.bench.quantised_rows import int8_decode

# A new row is a line here; its goal stands in kernel_goals.py. What no line measures is reported as not met.
MEASUREMENTS = (
    Measurement(
        "decode",
        ("decode-float32-sdpa", "decode-bfloat16-sdpa", "decode-float32-read", "decode-bfloat16-read"),
        decode,
    ),
    Measurement("mixed", ("mixed",), mixed),
    Measurement("order", ("order",), order),
    Measurement("numba", ("numba",), numba_decode),
    Measurement("int8-kv", ("int8-kv",), int8_decode),
    Measurement("prefill", ("prefill",), prefill),
    Measurement("swap", ("swap",), swap),
    Measurement("write", ("write",), write),
    Measurement("linears", ("linear-float32", "linear-bfloat16"), prepacked),
    Measurement("int8-linears", ("linear-int8", "linear-int8-bfloat16"), int8_linears),
)


def measured(bench: Bench, measurements: Sequence[Measurement]) -> list[Result]:
    """Run the measurements; return the results of their goals, and of all goals where all measurements ran."""
    found: Findings = {}
    reasons: dict[str, str] = {}
    for measurement in measurements:
        bench.say(f"{measurement.name}:")
        try:
            variants = measurement.measure(bench)
        except CannotMeasure as reason:
            bench.say(f"  not measured: {reason}")
            reasons |= dict.fromkeys(measurement.goals, str(reason))
            continue
        found |= variants
        for key in measurement.goals:
            for variant in variants[key]:
                spread = ", ".join(f"{ratio:.3g}" for ratio in variant.ratios)
                bench.say(f"  {key:<22} {variant.name:<32} {variant.median:8.3g}  [{spread}]")
    return results_of(_goals(measurements), found, reasons)


def _goals(measurements: Sequence[Measurement]) -> tuple[str, ...] | None:
    if len(measurements) == len(MEASUREMENTS):
        return None
    return tuple(key for measurement in measurements for key in measurement.goals)


def main() -> int:
    by_name = {measurement.name: measurement for measurement in MEASUREMENTS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the median counts")
    parser.add_argument("--only", choices=tuple(by_name), nargs="+", default=tuple(by_name), help="what to measure")
    parser.add_argument("--cache", type=Path, default=None, help="folder of compiled kernels")
    parser.add_argument("--output", type=Path, default=Path("build/bench/kernels.json"), help="with a .md beside it")
    options = parser.parse_args()
    loaded = load_library(options.cache)
    kernels = f"compiled for {loaded.target}" if isinstance(loaded, CpuLibrary) else loaded.reason
    head = f"{kernels}; {torch.get_num_threads()} threads; {options.rounds} rounds, medians"
    print(head, flush=True)
    bench = Bench(loaded, options.rounds, lambda text: print(text, flush=True), options.cache)
    results = measured(bench, [by_name[name] for name in dict.fromkeys(options.only)])
    report = table(results)
    missed = sum(not result.met for result in results)
    print(f"\n{report}\n\n{len(results) - missed} of {len(results)} musts are met")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = [result.as_json() for result in results]
    options.output.write_text(json.dumps({"machine": head, "rows": rows}, indent=1))
    options.output.with_suffix(".md").write_text(f"{head}\n\n{report}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
