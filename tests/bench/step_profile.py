"""Where a decode step spends its time: `python -m tests.bench.step_profile` prints the tables of kernels/README.md.

Parts are functions' times under Python's profiler, which makes the small ones look larger; the step without it stands
beside them. What a part calls counts in it.
"""

import argparse
import cProfile
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from pagefleet_runtime.engine_process import SPIN_COUNT
from pagefleet_runtime.executor import Executor
from tests.bench.rows import VOCAB_SIZE
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


def parts() -> dict[str, Callable[..., Any]]:
    """The function that holds each part. The head is one of the linears; an activation that the linears do themselves
    is not seen."""
    from pagefleet_kernels.gated_activation import gated_activation
    from pagefleet_kernels.paged_attention import paged_attention
    from pagefleet_kernels.prepacked_linear import PrepackedLinear
    from pagefleet_kernels.rms_norm import rms_norm
    from pagefleet_runtime.model_executor.kv_cache import KVCache
    from pagefleet_runtime.model_executor.sampling import sample_tokens

    return {
        "layers' linears": PrepackedLinear.forward,
        "attention": paged_attention,
        "norms": rms_norm,
        "rotary and KV write": KVCache.write,
        "activation": gated_activation,
        "sampling": sample_tokens,
    }


@contextmanager
def timed_head(times: list[float]) -> Iterator[None]:
    """Append what each run of the head takes: the one linear layer that gives the vocabulary."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    def started(module: Any, _: object) -> None:
        if getattr(module, "out_features", None) == VOCAB_SIZE:
            times.append(-time.perf_counter())

    def ended(module: Any, _: object, __: object) -> None:
        if getattr(module, "out_features", None) == VOCAB_SIZE:
            times[-1] += time.perf_counter()

    hooks = register_module_forward_pre_hook(started), register_module_forward_hook(ended)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def profiled(executor: Executor, step: Step, repeats: int) -> dict[str, float]:
    """Return each part's seconds in one step, `rest` and `step` among them."""
    plan, head = step.plan(), list[float]()
    executor.execute(plan)
    profiler = cProfile.Profile(builtins=False)
    with timed_head(head):
        started = time.perf_counter()
        for _ in range(repeats):
            profiler.runcall(executor.execute, plan)
        total = time.perf_counter() - started
    by_code = {entry.code: entry.totaltime for entry in profiler.getstats()}
    spent = {name: by_code.get(function.__code__, 0.0) for name, function in parts().items()}
    spent["layers' linears"] -= spent["activation"] + sum(head)
    spent["head"] = sum(head)
    spent["rest"] = total - sum(spent.values())
    spent["step"] = total
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
    os.environ.setdefault(*SPIN_COUNT)  # as the engine's process does, before torch is imported
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
