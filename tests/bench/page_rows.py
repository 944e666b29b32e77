"""The rows of what moves pages and tokens: swaps through a staging buffer, and the write of new keys and values."""

import torch

from pagefleet_kernels.cpu.cache import PageWriter
from pagefleet_kernels.page_gather_scatter.cpu import page_gather_cpu, page_scatter_cpu
from tests.bench.kernel_bench import Bench, Findings
from tests.bench.kernel_goals import Variant
from tests.bench.kernel_timing import ratios, rounds
from tests.bench.paged_data import BLOCK_SIZE, CONTEXT, SEQUENCES, SMALL, Pool, huge


def swap(bench: Bench) -> Findings:
    page_bytes, count = 30 * 2 * BLOCK_SIZE * 3 * 64 * 2, 256
    buffer = huge(2 * count * page_bytes).view(2 * count, page_bytes).fill_(1)
    staging = huge(count * page_bytes).view(count, page_bytes).fill_(2)
    pages = torch.randperm(2 * count)[:count].tolist()
    library = bench.library
    times = rounds(
        {
            "gather": lambda: page_gather_cpu(library, buffer, pages, staging),
            "scatter": lambda: page_scatter_cpu(library, staging, pages, buffer),
            "copy": lambda: staging.copy_(buffer[:count]),
        },
        bench.rounds,
    )
    return {"swap": tuple(Variant(name, ratios(times["copy"], times[name])) for name in ("gather", "scatter"))}


def write(bench: Bench) -> Findings:
    pool = Pool(SMALL, torch.bfloat16, [CONTEXT] * SEQUENCES)
    slots = torch.randperm(SEQUENCES * CONTEXT)[:32]
    key = torch.randn(32, SMALL.kv, SMALL.size).bfloat16()
    flat = torch.zeros(2, SEQUENCES * CONTEXT, SMALL.kv, SMALL.size, dtype=torch.bfloat16)
    writer = PageWriter(bench.library, pool.pages[:, 0, 0], pool.pages[:, 0, 1])

    def plain() -> None:
        flat[0].index_copy_(0, slots, key)
        flat[1].index_copy_(0, slots, key)

    times = rounds({"ours": lambda: writer.write(key, key, slots), "plain": plain}, bench.rounds)
    return {"write": (Variant("bfloat16", ratios(times["ours"], times["plain"])),)}
