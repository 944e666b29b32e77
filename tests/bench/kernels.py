"""The benchmark of the CPU kernels: `python -m tests.bench.kernels`. Prints what was expected of each row and what
came out, as ratios of variants that ran in turn. Absolute figures depend on the minute; ratios less so."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from pagefleet_kernels.cpu import CpuLibrary, load_library
from pagefleet_kernels.cpu.cache import PageWriter
from pagefleet_kernels.cpu.huge_pages import ask_for_huge_pages
from pagefleet_kernels.page_gather_scatter.cpu import page_gather_cpu, page_scatter_cpu
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from pagefleet_kernels.prepacked_linear import PrepackedLinear, WeightMemory
from tests.bench.figures import Goal, goal
from tests.bench.kernel_timing import Stream, cycle, describe, ratios, rounds

BLOCK_SIZE = 16
SEQUENCES = 32
CONTEXT = 1024
POOL_BYTES = 120 << 20


@dataclass(frozen=True, slots=True)
class Bench:
    library: CpuLibrary
    rounds: int
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    size: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} heads of {self.size}"


SMALL, LARGE = Heads(9, 3, 64), Heads(32, 8, 128)


def huge(num_bytes: int) -> torch.Tensor:
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    ask_for_huge_pages(memory)
    return memory


class Pool:
    """Enough layers of pages that their keys and values come from memory, and contexts of the given lengths."""

    def __init__(self, heads: Heads, dtype: torch.dtype, lengths: list[int], *, shuffled: bool = True) -> None:
        self.heads, self.dtype, self.lengths = heads, dtype, lengths
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        layer = 2 * BLOCK_SIZE * heads.kv * heads.size
        self.num_layers = max(2, POOL_BYTES // (sum(counts) * layer * dtype.itemsize))
        memory = huge(sum(counts) * self.num_layers * layer * dtype.itemsize)
        self.pages = memory.view(dtype).view(sum(counts), self.num_layers, 2, BLOCK_SIZE, heads.kv, heads.size)
        self.pages.normal_()
        order = torch.randperm(sum(counts)).tolist() if shuffled else list(range(sum(counts)))
        tables = [tuple(order[sum(counts[:i]) : sum(counts[: i + 1])]) for i in range(len(counts))]
        self.batch = AttentionBatch(
            tuple(BatchRow(1, length - 1, table) for length, table in zip(lengths, tables, strict=True)), BLOCK_SIZE
        )
        self.query = torch.randn(len(lengths), heads.query, heads.size).to(dtype)

    @property
    def num_bytes(self) -> int:
        """Keys and values of one layer."""
        return 2 * sum(self.lengths) * self.heads.kv * self.heads.size * self.dtype.itemsize

    def attention(self, library: CpuLibrary) -> Callable[[], object]:
        scale = self.heads.size**-0.5
        return cycle(
            lambda i: paged_attention_cpu(
                library, self.query, self.pages[:, i, 0], self.pages[:, i, 1], self.batch, scale=scale
            ),
            self.num_layers,
        )


def contiguous_attention(pool: Pool) -> Callable[[], object]:
    """torch's attention on as many layers of contiguous keys and values; a group's query heads are its queries."""
    heads, longest, count = pool.heads, max(pool.lengths), len(pool.lengths)
    shape = (pool.num_layers, 2, count, heads.kv, longest, heads.size)
    memory = huge(torch.Size(shape).numel() * pool.dtype.itemsize).view(pool.dtype).view(shape).normal_()
    query = pool.query.view(count, heads.kv, -1, heads.size)
    mask = None
    if len(set(pool.lengths)) > 1:
        mask = (torch.arange(longest) < torch.tensor(pool.lengths)[:, None])[:, None, None]
    return cycle(
        lambda i: scaled_dot_product_attention(query, memory[i, 0], memory[i, 1], attn_mask=mask), pool.num_layers
    )


def decode(bench: Bench) -> list[Goal]:
    goals = []
    for dtype, over_sdpa, share in ((torch.float32, 1.3, 0.4), (torch.bfloat16, 1.8, 0.3)):
        name = str(dtype).removeprefix("torch.")
        for heads in (SMALL, LARGE):
            pool, stream = Pool(heads, dtype, [CONTEXT] * SEQUENCES), Stream(huge(256 << 20))
            times = rounds(
                {"read": stream, "sdpa": contiguous_attention(pool), "paged": pool.attention(bench.library)},
                bench.rounds,
            )
            layers = pool.num_bytes * pool.num_layers
            bench.say(describe(f"{name} {heads}", times["paged"], layers, "GB/s"))
            read = [second * layers / stream.num_bytes for second in times["read"]]
            goals.append(goal(f"paged decode {name}, {heads} / SDPA", over_sdpa, ratios(times["sdpa"], times["paged"])))
            goals.append(goal(f"paged decode {name}, {heads} / read", share, ratios(read, times["paged"]), unit="of 1"))
    return goals


def mixed(bench: Bench) -> list[Goal]:
    lengths = torch.linspace(512, 4096, SEQUENCES).int().tolist()
    pool = Pool(SMALL, torch.bfloat16, lengths)
    times = rounds({"sdpa": contiguous_attention(pool), "paged": pool.attention(bench.library)}, bench.rounds)
    return [goal("mixed lengths bfloat16 / padded SDPA", 1.8, ratios(times["sdpa"], times["paged"]))]


def order(bench: Bench) -> list[Goal]:
    goals = []
    for dtype in (torch.float32, torch.bfloat16):
        pools = {
            name: Pool(SMALL, dtype, [CONTEXT] * SEQUENCES, shuffled=name == "shuffled")
            for name in ("shuffled", "ordered")
        }
        times = rounds({name: pool.attention(bench.library) for name, pool in pools.items()}, bench.rounds)
        title = f"shuffled / ordered block table, {dtype}".replace("torch.", "")
        goals.append(goal(title, 0.6, ratios(times["ordered"], times["shuffled"])))
    return goals


def prefill(bench: Bench) -> list[Goal]:
    goals = []
    for dtype in (torch.float32, torch.bfloat16):
        for start in (0, 512):
            tokens, heads = 512, SMALL
            pool = Pool(heads, dtype, [start + tokens])
            batch = AttentionBatch((BatchRow(tokens, start, pool.batch.rows[0].block_table),), BLOCK_SIZE)
            query = torch.randn(tokens, heads.query, heads.size).to(dtype)
            context = torch.randn(2, 1, heads.kv, start + tokens, heads.size).to(dtype)
            mask = None if start == 0 else torch.ones(tokens, start + tokens, dtype=torch.bool).tril(start)
            times = rounds(
                {
                    "sdpa": _prefill_sdpa(query, context, mask),
                    "paged": _prefill_paged(bench.library, query, pool, batch),
                },
                bench.rounds,
            )
            work = 4 * heads.query * heads.size * (tokens * start + tokens * (tokens + 1) / 2)
            title = f"prefill {tokens} after {start}, {dtype}".replace("torch.", "")
            bench.say(describe(title, times["paged"], work, "GFLOP/s"))
            goals.append(goal(f"{title} / SDPA contiguous", 0.9, ratios(times["sdpa"], times["paged"])))
    return goals


def _prefill_sdpa(query: torch.Tensor, context: torch.Tensor, mask: torch.Tensor | None) -> Callable[[], object]:
    queries = query.transpose(0, 1)[None].contiguous()
    return lambda: scaled_dot_product_attention(
        queries, context[0], context[1], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


def _prefill_paged(library: CpuLibrary, query: torch.Tensor, pool: Pool, batch: AttentionBatch) -> Callable[[], object]:
    keys, values = pool.pages[:, 0, 0], pool.pages[:, 0, 1]
    return lambda: paged_attention_cpu(library, query, keys, values, batch, scale=pool.heads.size**-0.5)


def swap(bench: Bench) -> list[Goal]:
    page_bytes, count = 30 * 2 * BLOCK_SIZE * 3 * 64 * 2, 256
    buffer = huge(2 * count * page_bytes).view(2 * count, page_bytes).fill_(1)
    staging = huge(count * page_bytes).view(count, page_bytes).fill_(2)
    index = torch.randperm(2 * count)[:count]
    pages = index.tolist()
    times = rounds(
        {
            "gather": lambda: page_gather_cpu(bench.library, buffer, pages, staging),
            "scatter": lambda: page_scatter_cpu(bench.library, staging, pages, buffer),
            "copy": lambda: staging.copy_(buffer[:count]),
        },
        bench.rounds,
    )
    return [
        goal(f"swap {name} / plain tensor copy", 1.0, ratios(times["copy"], times[name]))
        for name in ("gather", "scatter")
    ]


def write(bench: Bench) -> list[Goal]:
    pool = Pool(SMALL, torch.bfloat16, [CONTEXT] * SEQUENCES)
    slots = torch.randperm(SEQUENCES * CONTEXT)[:32]
    key = torch.randn(32, SMALL.kv, SMALL.size).bfloat16()
    flat = torch.zeros(2, SEQUENCES * CONTEXT, SMALL.kv, SMALL.size, dtype=torch.bfloat16)
    writer = PageWriter(bench.library, pool.pages[:, 0, 0], pool.pages[:, 0, 1])

    def plain() -> None:
        flat[0].index_copy_(0, slots, key)
        flat[1].index_copy_(0, slots, key)

    times = rounds({"ours": lambda: writer.write(key, key, slots), "plain": plain}, bench.rounds)
    return [goal("KV write, 32 tokens / index_copy_", 0.5, ratios(times["ours"], times["plain"]), at_least=False)]


def linears(bench: Bench) -> list[Goal]:
    goals = []
    for dtype, expected in ((torch.float32, 1.4), (torch.bfloat16, 2.2)):
        for size_out, size_in, copies in ((1536, 576, 24), (8192, 2048, 3)):
            weights = [torch.randn(size_out, size_in) / size_in**0.5 for _ in range(copies)]
            memory = WeightMemory()
            packed = [PrepackedLinear([w.to(dtype)], library=bench.library, memory=memory) for w in weights]
            for tokens in (1, 8, 32):
                x = torch.randn(tokens, size_in)
                times = _linear_times(weights, packed, x, x.to(dtype), bench.rounds)
                title = f"{dtype} prepacked {size_out}x{size_in}, {tokens} rows / F.linear float32"
                goals.append(goal(title.removeprefix("torch."), expected, ratios(times["plain"], times["packed"])))
    return goals


def _linear_times(
    weights: list[torch.Tensor], packed: list[PrepackedLinear], wide: torch.Tensor, x: torch.Tensor, count: int
) -> dict[str, list[float]]:
    with torch.inference_mode():
        return rounds(
            {
                "plain": cycle(lambda i: linear(wide, weights[i]), len(weights)),
                "packed": cycle(lambda i: packed[i](x), len(packed)),
            },
            count,
        )


ROWS: dict[str, Callable[[Bench], list[Goal]]] = {
    "decode": decode,
    "mixed": mixed,
    "order": order,
    "prefill": prefill,
    "swap": swap,
    "write": write,
    "linears": linears,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the median counts")
    parser.add_argument("--only", choices=tuple(ROWS), nargs="+", default=tuple(ROWS), help="rows to run")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the compiled library")
    parser.add_argument("--output", type=Path, default=Path("build/bench/kernels.json"))
    options = parser.parse_args()
    library: Any = load_library(options.cache)
    if not isinstance(library, CpuLibrary):
        raise SystemExit(f"there is nothing to measure: {library.reason}")
    print(f"compiled for {library.target}, {torch.get_num_threads()} threads", flush=True)
    bench = Bench(library, options.rounds, lambda text: print(text, flush=True))
    goals = [row for name in options.only for row in ROWS[name](bench)]
    for row in goals:
        print(row.line())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(row) for row in goals], indent=1))


if __name__ == "__main__":
    main()
