"""The comparison with others on SmolLM2-135M: `python -m tests.bench.peers`; README.md beside this file says how to
install them. All run in turn in one run; a peer that isn't given is a row that is not met."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tests.bench.client import Trace
from tests.bench.figures import Goal, NotRun, RunFigures, decode_tokens_per_second, goal
from tests.bench.rows import STATIC_BATCH_SIZES, VOCAB_SIZE, Bench, static_tokens_per_second
from tests.bench.step_paths import FIRST_COMMIT, first_path, step_path, why_no_first_path
from tests.bench.steps import MODEL_URI
from tests.bench.subjects import Subject, llama_cpp, openvino, pagefleet, resident_mib
from tests.bench.worker import Worker
from tests.bench.workloads import mixed, one

STREAMS_A_ROUND = 3
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
STEP_ROWS, STEP_CONTEXT = (1, 8, 32), 330

Row = Goal | NotRun


@dataclass(frozen=True, slots=True)
class Given:
    """Where the peers are; None: not given."""

    openvino: tuple[Path, Path] | None  # its Python, the exported model
    llama: tuple[Path, Path] | None  # llama-server, a GGUF in bfloat16
    steps_a_round: int
    flags: tuple[str, ...]  # of our server


def _report(bench: Bench, subject: Subject, traces: Sequence[Trace]) -> RunFigures:
    figures = RunFigures.of(traces)
    bench.say(f"  {subject.name}: {figures}, RSS {resident_mib(subject.pid):.0f} MiB")
    return figures


def _warm(subject: Subject) -> None:
    subject.run([one(1, VOCAB_SIZE, 32, 4)])


def mixed_load(bench: Bench, given: Given) -> list[Row]:
    """Requests that arrive at once, against OpenVINO GenAI and against padded batches of generate()."""
    over_openvino, over_static = [], []
    sizes: Sequence[int] = [size for size in STATIC_BATCH_SIZES if size <= bench.num_requests] or [bench.num_requests]
    with ExitStack() as stack:
        ours = stack.enter_context(pagefleet(bench.model_uri, bench.dtype, bench.num_threads, *given.flags))
        subjects: list[Subject] = [ours]
        if given.openvino is not None:
            subjects.append(stack.enter_context(openvino(*given.openvino, bench.num_threads)))
        for subject in subjects:
            _warm(subject)
        for round_index in range(bench.num_rounds):
            requests = mixed(round_index, VOCAB_SIZE, bench.num_requests)
            reached = [_report(bench, subject, subject.run(requests)).output_tokens_per_second for subject in subjects]
            over_openvino += [reached[0] / theirs for theirs in reached[1:]]
            static = {size: static_tokens_per_second(bench, ours.model_directory, size, requests) for size in sizes}
            sizes = [max(static, key=lambda size: static[size])]  # the best of the first round stands for all
            over_static.append(reached[0] / static[sizes[0]])
    title = f"{bench.num_requests} mixed requests / OpenVINO GenAI"
    return [
        goal(f"{bench.num_requests} mixed requests / the best static batch", 4.0, over_static),
        goal(title, 1.0, over_openvino) if over_openvino else NotRun(title, 1.0, "--openvino not given"),
    ]


def one_stream(bench: Bench, given: Given) -> list[Row]:
    """One request at a time; what counts is the speed after the first token."""
    title = f"one stream of {PROMPT_TOKENS} in, {OUTPUT_TOKENS} out, decode / llama.cpp"
    if given.llama is None:
        return [NotRun(title, 0.75, "--llama-server not given")]
    ratios = []
    with ExitStack() as stack:
        subjects: list[Subject] = [
            stack.enter_context(pagefleet(bench.model_uri, bench.dtype, bench.num_threads, *given.flags)),
            stack.enter_context(llama_cpp(*given.llama, bench.num_threads)),
        ]
        for subject in subjects:
            _warm(subject)
        for round_index in range(bench.num_rounds):
            speeds = []
            for subject in subjects:
                seeds = range(600 + 10 * round_index, 600 + 10 * round_index + STREAMS_A_ROUND)
                traces = [subject.run([one(s, VOCAB_SIZE, PROMPT_TOKENS, OUTPUT_TOKENS)])[0] for s in seeds]
                speeds.append(decode_tokens_per_second(traces))
                bench.say(f"  {subject.name}: decode {speeds[-1]:.1f} tokens/s")
                for trace in traces:
                    _report(bench, subject, [trace])
            ratios.append(speeds[0] / speeds[1])
    return [goal(title, 0.75, ratios)]


def decode_step(bench: Bench, given: Given) -> list[Row]:
    """A step in the engine's executor, without server and scheduler, on today's kernels and two slower paths."""
    title = f"decode step of {STEP_ROWS[-1]} rows, path of {FIRST_COMMIT} / today's"
    missing = why_no_first_path()
    if missing is not None:
        return [NotRun(title, 5.0, missing)]
    ratios = []
    with ExitStack() as stack:
        paths = {
            "today": stack.enter_context(step_path("auto", bench.num_threads)),
            "plain PyTorch": stack.enter_context(step_path("plain", bench.num_threads)),
            FIRST_COMMIT: stack.enter_context(first_path(bench.num_threads)),
        }
        for _ in range(bench.num_rounds):
            for rows in STEP_ROWS:
                seconds = {name: _step_seconds(path, rows, given.steps_a_round) for name, path in paths.items()}
                shown = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in seconds.items())
                bench.say(
                    f"  {rows} rows behind {STEP_CONTEXT} tokens: {shown};"
                    f" plain / today {seconds['plain PyTorch'] / seconds['today']:.2f}"
                )
            ratios.append(seconds[FIRST_COMMIT] / seconds["today"])  # the last: 32 rows
    return [goal(title, 5.0, ratios)]


def _step_seconds(path: Worker, rows: int, repeats: int) -> float:
    seconds: float = path.ask({"rows": rows, "context": STEP_CONTEXT, "repeats": repeats})["seconds"]
    return seconds


ROWS: dict[str, Callable[[Bench, Given], list[Row]]] = {
    "mixed": mixed_load,
    "stream": one_stream,
    "step": decode_step,
}


def _pair(first: Path | None, second: Path | None, names: str) -> tuple[Path, Path] | None:
    if (first is None) != (second is None):
        raise SystemExit(f"{names} belong together; give both or neither")
    return None if first is None or second is None else (first, second)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openvino", type=Path, help="a Python that has openvino-genai")
    parser.add_argument("--openvino-model", type=Path, help="the model's directory, exported by optimum-cli")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's program of that name")
    parser.add_argument("--llama-model", type=Path, help="the model as a GGUF in bfloat16")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the median counts")
    parser.add_argument("--requests", type=int, default=32, help="concurrent requests of the mixed load")
    parser.add_argument("--steps", type=int, default=20, help="decode steps of each size and path in a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of every engine measured")
    parser.add_argument("--flags", default="", help="more flags of our server, as one argument: --flags='--x 1'")
    parser.add_argument("--only", choices=tuple(ROWS), nargs="+", default=tuple(ROWS), help="rows to run")
    parser.add_argument("--output", type=Path, default=Path("build/bench/peers.json"))
    options = parser.parse_args()
    given = Given(
        _pair(options.openvino, options.openvino_model, "--openvino and --openvino-model"),
        _pair(options.llama_server, options.llama_model, "--llama-server and --llama-model"),
        options.steps,
        tuple(options.flags.split()),
    )
    said: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        said.append(text)

    bench = Bench(MODEL_URI, "bfloat16", options.rounds, options.requests, options.threads, say)
    rows: list[Row] = []
    for name in options.only:
        say(f"{name}:")
        rows += ROWS[name](bench, given)
    print(f"\n{MODEL_URI} in bfloat16, {options.threads} threads, {options.rounds} rounds, medians")
    for row in rows:
        print(row.line())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"load": median(os.getloadavg()), "rows": [asdict(row) for row in rows], "said": said}
    options.output.write_text(json.dumps(report, indent=1))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
