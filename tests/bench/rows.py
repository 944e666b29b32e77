"""The rows of the report: what is measured, against what, and what is expected of it. Each row starts the servers it
compares, keeps them side by side and runs them in turns, so that a slow minute of the machine meets all of them."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench.client import run_workload
from tests.bench.figures import Goal, RunFigures, goal
from tests.bench.replay import scheduling_seconds
from tests.bench.server import BenchServer, bench_server
from tests.bench.workloads import BenchRequest, mixed, one, shared_prefix

VOCAB_SIZE = 49_152
STATIC_BATCH_SIZES = (8, 16, 32)
STEP_MILLISECONDS = 100  # what a CPU replica uses where nothing is set


@dataclass(frozen=True, slots=True)
class Bench:
    """How much is measured: the model, its type, the rounds, and the requests of a workload."""

    model_uri: str
    dtype: str
    num_rounds: int
    num_requests: int
    num_threads: int
    say: Callable[[str], None]

    def server(self, stack: ExitStack, *flags: str) -> BenchServer:
        """Start a server and warm it with one request."""
        server = stack.enter_context(
            bench_server(self.model_uri, self.num_threads, "--model-dtype", self.dtype, *flags)
        )
        run_workload(server.endpoint, [one(1, VOCAB_SIZE, 32, 4)])
        return server

    def figures(self, name: str, server: BenchServer, requests: Sequence[BenchRequest]) -> RunFigures:
        figures = RunFigures.of(run_workload(server.endpoint, requests))
        self.say(f"  {name}: {figures}")
        return figures


def static_tokens_per_second(bench: Bench, directory: str, batch_size: int, requests: Sequence[BenchRequest]) -> float:
    """transformers' generate() on the same model, type and threads, in a process of its own."""
    lines = "\n".join(
        json.dumps({"prompt_ids": request.prompt_ids, "num_output_tokens": request.num_output_tokens})
        for request in requests
    )
    command = [
        *(sys.executable, "-m", "tests.bench.static_batches", directory),
        *("--dtype", bench.dtype, "--batch-size", str(batch_size), "--threads", str(bench.num_threads)),
    ]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    seconds: float = json.loads(done.stdout.splitlines()[-1])["seconds"]
    speed = sum(request.num_output_tokens for request in requests) / seconds
    bench.say(f"  static batches of {batch_size}: {speed:.1f} tokens/s")
    return speed


def against_static_batches(bench: Bench) -> list[Goal]:
    ratios = []
    with ExitStack() as stack:
        server = bench.server(stack, "--kv-cache-budget-memory", "1Gi")
        directory = server.state()["info"]["modelDirectory"]
        for round_index in range(bench.num_rounds):
            requests = mixed(round_index, VOCAB_SIZE, bench.num_requests)
            ours = bench.figures("paged", server, requests).output_tokens_per_second
            ratios.append(
                ours
                / max(
                    static_tokens_per_second(bench, directory, size, requests)
                    for size in STATIC_BATCH_SIZES
                    if size <= bench.num_requests
                )
            )
    return [goal("throughput against the best static batch of generate()", 1.2, ratios)]


def against_reserving(bench: Bench) -> list[Goal]:
    ratios = []
    # What the KV of two requests of the maximum takes; the requests use 64 to 768 tokens each.
    short = ("--kv-cache-budget-blocks", "512", "--model-max-length", "4096")
    with ExitStack() as stack:
        paged = bench.server(stack, *short)
        reserving = bench.server(stack, *short, "--kv-cache-swap-mode", "Disabled")
        for round_index in range(bench.num_rounds):
            requests = mixed(round_index, VOCAB_SIZE, bench.num_requests)
            ours = bench.figures("paged, 8,192 tokens of KV", paged, requests)
            theirs = bench.figures("reserving maxLength, equal KV", reserving, requests)
            ratios.append(ours.output_tokens_per_second / theirs.output_tokens_per_second)
    return [goal("throughput against reserving maxLength (4,096), KV of 8,192 tokens", 2.0, ratios)]


def cost_of_sharing(bench: Bench) -> list[Goal]:
    """What looking for prefixes costs where there are none: the scheduler alone, replayed with and without, as a share
    of the time that the engine's steps take on the same work."""
    shares = []
    with ExitStack() as stack:
        server = bench.server(stack, "--kv-cache-budget-memory", "1Gi")
        for round_index in range(bench.num_rounds):
            requests = mixed(100 + round_index, VOCAB_SIZE, bench.num_requests)
            before = server.state()["snapshot"]
            bench.figures("no common beginnings", server, requests)
            after = server.state()["snapshot"]
            engine = after["stepSeconds"] - before["stepSeconds"]
            added = scheduling_seconds(requests, "Service") - scheduling_seconds(requests, "Disabled")
            shares.append(100 * added / engine)
    return [goal("cost of prefix sharing without reuse", 1.0, shares, at_least=False, unit="%")]


def shared_prefixes(bench: Bench) -> list[Goal]:
    ratios = []
    with ExitStack() as stack:
        server = bench.server(stack, "--kv-cache-budget-memory", "1Gi")
        for round_index in range(bench.num_rounds):
            cold, warm = (
                run_workload(server.endpoint, [request])[0]
                for request in shared_prefix(200 + round_index, VOCAB_SIZE, 2, 1024, 16, 8)
            )
            bench.say(
                f"  prefix of 1,024: cold {cold.ttft_seconds:.3f} s,"
                f" warm {warm.ttft_seconds:.3f} s with {warm.num_cached_tokens} tokens from the cache"
            )
            ratios.append(cold.ttft_seconds / warm.ttft_seconds)
    return [goal("TTFT of a 1,024-token prefix, cold over warm", 5.0, ratios)]


def unused_slots(bench: Bench) -> list[Goal]:
    """Sample the engine's own count while a mixed load runs; one tail block a sequence may have unused slots."""
    over_tails, live_percents = [], []
    with ExitStack() as stack:
        server = bench.server(stack, "--kv-cache-budget-memory", "1Gi")
        for round_index in range(bench.num_rounds):
            samples: list[dict[str, int]] = []
            done = threading.Event()

            def watch(samples: list[dict[str, int]] = samples, done: threading.Event = done) -> None:
                while not done.wait(0.2):
                    samples.append(server.state()["snapshot"])

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                bench.figures("mixed", server, mixed(300 + round_index, VOCAB_SIZE, bench.num_requests))
            finally:
                done.set()
                watcher.join()
            busy = [sample for sample in samples if sample["running"]]
            over_tails.append(
                max(sample["slotsAllocated"] - sample["slotsLive"] - 15 * sample["running"] for sample in busy)
            )
            live = sum(sample["slotsLive"] for sample in busy)
            live_percents.append(100 * live / sum(sample["slotsAllocated"] for sample in busy))
    return [
        goal("unused slots outside one tail block a sequence", 0, over_tails, at_least=False, unit="slots"),
        goal("slots that hold a token, of those allocated", 95, live_percents, unit="%"),
    ]


def long_prompt_beside_streams(bench: Bench) -> list[Goal]:
    longest = []
    with ExitStack() as stack:
        server = bench.server(stack, "--kv-cache-budget-memory", "1Gi")
        for round_index in range(bench.num_rounds):
            streams = [one(400 + 10 * round_index + index, VOCAB_SIZE, 64, 160) for index in range(8)]
            prompt = one(500 + round_index, VOCAB_SIZE, 4000, 4)
            late = BenchRequest(prompt.prompt_ids, prompt.num_output_tokens, delay_seconds=3.0)
            traces = run_workload(server.endpoint, [*streams, late])
            # From the second token on: the first ones share their step with the streams' own prompts.
            gaps = [gap for trace in traces[:-1] for gap in trace.gaps_seconds[1:]]
            bench.say(
                f"  4,000 tokens beside 8 streams: longest gap {max(gaps) * 1e3:.0f} ms,"
                f" its TTFT {traces[-1].ttft_seconds:.1f} s"
            )
            longest.append(max(gaps) * 1e3 / STEP_MILLISECONDS)
    return [
        goal(
            "longest gap between tokens beside a 4,000-token prompt, in steps",
            1.5,
            longest,
            at_least=False,
        )
    ]


ROWS: dict[str, Callable[[Bench], list[Goal]]] = {
    "static": against_static_batches,
    "reserving": against_reserving,
    "sharing-cost": cost_of_sharing,
    "prefix": shared_prefixes,
    "waste": unused_slots,
    "long-prompt": long_prompt_beside_streams,
}
