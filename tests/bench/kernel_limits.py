"""How far each CPU operation is from what binds it: `python -m tests.bench.kernel_limits`. Beside each operation its
limit runs in turn: a read or a copy of memory, or a large product by torch. The READMEs' shares are these."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from pagefleet_kernels.cpu import CpuLibrary, load_library
from pagefleet_kernels.cpu.cache import PageWriter, Rotation
from pagefleet_kernels.gated_activation import gated_activation
from pagefleet_kernels.page_copy.cpu import page_copy_cpu
from pagefleet_kernels.page_gather_scatter.cpu import page_gather_cpu
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from pagefleet_kernels.prepacked_linear import PrepackedLinear, WeightMemory
from pagefleet_kernels.rms_norm import rms_norm
from tests.bench.kernel_timing import Stream, cycle, rounds
from tests.bench.paged_data import BLOCK_SIZE, CONTEXT, LARGE, SEQUENCES, SMALL, Heads, Pool, huge, type_name

_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Work:
    """Something that is run, and how many bytes or operations of arithmetic it takes at least."""

    run: Callable[[], object]
    amount: float


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    bound: str  # which limit binds it
    work: Work


def limits() -> dict[str, Work]:
    source, target, size = huge(128 << 20).fill_(1), huge(128 << 20), 2048
    stream = Stream(huge(256 << 20))
    found = {
        "read": Work(stream, stream.num_bytes),
        "copy": Work(lambda: target.copy_(source), 2 * source.numel()),
    }
    for dtype in _DTYPES:
        left, right = torch.randn(2, size, size).to(dtype)
        found[f"{type_name(dtype)} product"] = Work(partial(torch.mm, left, right), 2.0 * size**3)
    return found


def attention(library: CpuLibrary) -> list[Operation]:
    found = []
    for dtype in _DTYPES:
        for heads in (SMALL, LARGE):
            pool = Pool(heads, dtype, [CONTEXT] * SEQUENCES)
            work = Work(pool.attention(library), pool.num_bytes * pool.num_layers)
            found.append(Operation(f"paged_attention, decode, {type_name(dtype)}, {heads}", "read", work))
        found.append(_prefill(library, dtype, LARGE))
    return found


def _prefill(library: CpuLibrary, dtype: torch.dtype, heads: Heads) -> Operation:
    tokens = CONTEXT
    pool = Pool(heads, dtype, [tokens])
    batch = AttentionBatch((BatchRow(tokens, 0, pool.batch.rows[0].block_table),), BLOCK_SIZE)
    query = torch.randn(tokens, heads.query, heads.size).to(dtype)
    keys, values = pool.pages[:, 0, 0], pool.pages[:, 0, 1]
    work = Work(
        lambda: paged_attention_cpu(library, AttentionCall(query, keys, values, batch, heads.size**-0.5)),
        4 * heads.query * heads.size * tokens * (tokens + 1) / 2,
    )
    name = type_name(dtype)
    return Operation(f"paged_attention, prefill of {tokens}, {name}, {heads}", f"{name} product", work)


def writes(library: CpuLibrary) -> list[Operation]:
    heads, dtype, tokens = LARGE, torch.bfloat16, SEQUENCES * CONTEXT
    pool = Pool(heads, dtype, [CONTEXT] * SEQUENCES)
    slots = torch.randperm(tokens)
    fused = huge(tokens * (heads.query + 2 * heads.kv) * heads.size * dtype.itemsize).view(dtype)
    fused = fused.view(tokens, -1, heads.size).normal_()
    query, key = fused[:, : heads.query], fused[:, heads.query : heads.query + heads.kv]
    value = fused[:, heads.query + heads.kv :]
    angles = torch.randn(tokens, heads.size)
    rotation = Rotation(query, angles.cos(), angles.sin())
    writer = PageWriter(library, pool.pages[:, 0, 0], pool.pages[:, 0, 1])
    written = 2 * 2 * key.numel() * dtype.itemsize
    rotated = written + 2 * query.numel() * dtype.itemsize + 2 * angles.numel() * 4
    return [
        Operation("kv_write, bfloat16", "copy", Work(lambda: writer.write(key, value, slots), written)),
        Operation(
            "rotary_kv_write, bfloat16", "copy", Work(lambda: writer.write(key, value, slots, rotation), rotated)
        ),
    ]


def pages(library: CpuLibrary) -> list[Operation]:
    page_bytes, count = 30 * 2 * BLOCK_SIZE * 3 * 64 * 2, 256
    buffer = huge(2 * count * page_bytes).view(2 * count, page_bytes).fill_(1)
    staging = huge(count * page_bytes).view(count, page_bytes).fill_(2)
    order = torch.randperm(2 * count).tolist()
    copies = list(zip(order[:count], order[count:], strict=True))
    moved = 2 * count * page_bytes
    return [
        Operation("page_copy", "copy", Work(lambda: page_copy_cpu(library, buffer, copies), moved)),
        Operation(
            "page_gather_scatter", "copy", Work(lambda: page_gather_cpu(library, buffer, order[:count], staging), moved)
        ),
    ]


def layers(library: CpuLibrary) -> list[Operation]:
    """Rows of a step's size, of as many layers as make them come from memory."""
    tokens, size, copies, dtype = 512, 2048, 16, torch.bfloat16
    x, residual = huge(2 * copies * tokens * size * 2).view(dtype).view(2, copies, tokens, size).normal_()
    gates = huge(2 * copies * tokens * size * 2).view(dtype).view(copies, tokens, 2 * size).normal_()
    weights, numbers = torch.ones(size), 2.0 * copies * tokens * size
    norm = cycle(lambda i: rms_norm(x[i], weights, 1e-5, residual=residual[i], library=library), copies)
    activation = cycle(lambda i: gated_activation(gates[i], "silu", library=library), copies)
    return [
        Operation("rms_norm with residual, bfloat16", "copy", Work(norm, 4 * numbers)),
        Operation("gated_activation, silu, bfloat16", "copy", Work(activation, 3 * numbers)),
    ]


def linears(library: CpuLibrary) -> list[Operation]:
    return [
        *_linears(library, torch.float32, "none"),
        *_linears(library, torch.bfloat16, "none"),
        *_linears(library, torch.bfloat16, "int8"),
    ]


def _linears(library: CpuLibrary, dtype: torch.dtype, quantization: Literal["none", "int8"]) -> list[Operation]:
    size_out, size_in, copies = 8192, 2048, 3
    memory, found = WeightMemory(), []
    packed = [
        PrepackedLinear(
            [(torch.randn(size_out, size_in) / 45).to(dtype)],
            library=library,
            memory=memory,
            quantization=quantization,
        )
        for _ in range(copies)
    ]
    weights = size_out * size_in * copies
    name = type_name(dtype) if quantization == "none" else quantization
    for tokens, bound, amount in (
        (1, "read", weights * (dtype.itemsize if quantization == "none" else 1)),
        (512, f"{type_name(dtype)} product", 2 * 512 * weights),
    ):
        x = torch.randn(tokens, size_in).to(dtype)
        run = cycle(lambda i, x=x: packed[i](x), copies)  # type: ignore[misc]
        found.append(Operation(f"prepacked_linear, {tokens} row(s), {name}", bound, Work(run, amount)))
    return found


@dataclass(frozen=True, slots=True)
class Share:
    """Rates in units a second. The share is the median of the rounds' own."""

    reached: float
    limit: float
    share: float


def share(operation: Operation, limit: Work, count: int) -> Share:
    with torch.inference_mode():
        times = rounds({"ours": operation.work.run, "limit": limit.run}, count)
    factor = operation.work.amount / limit.amount
    shares = [factor * theirs / ours for ours, theirs in zip(times["ours"], times["limit"], strict=True)]
    return Share(operation.work.amount / median(times["ours"]), limit.amount / median(times["limit"]), median(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the median counts")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the compiled library")
    parser.add_argument("--output", type=Path, default=Path("build/bench/kernel-limits.md"))
    options = parser.parse_args()
    library = load_library(options.cache)
    if not isinstance(library, CpuLibrary):
        raise SystemExit(f"there is nothing to measure: {library.reason}")
    lines = [
        f"compiled for {library.target}; {torch.get_num_threads()} threads; {options.rounds} rounds, medians",
        "",
        "| operation | bound by | reached | limit | share |",
        "| --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    bounds = limits()
    for group in (attention, writes, pages, layers, linears):
        for operation in group(library):
            found = share(operation, bounds[operation.bound], options.rounds)
            unit = "GFLOP/s" if "product" in operation.bound else "GB/s"
            figures = f"{found.reached / 1e9:.1f} {unit} | {found.limit / 1e9:.1f} {unit} | {found.share:.0%}"
            lines.append(f"| {operation.name} | {operation.bound} | {figures} |")
            print(lines[-1], flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
