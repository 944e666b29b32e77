"""The rows of attention by the C++ library: decode against torch's attention and the memory, and prefill."""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from tests.bench.kernel_bench import Bench, Findings
from tests.bench.kernel_goals import Variant
from tests.bench.kernel_timing import Stream, describe, ratios, rounds
from tests.bench.paged_data import (
    BLOCK_SIZE,
    CONTEXT,
    LARGE,
    SEQUENCES,
    SMALL,
    Pool,
    contiguous_attention,
    huge,
    type_name,
)


def decode(bench: Bench) -> Findings:
    found: Findings = {}
    for dtype in (torch.float32, torch.bfloat16):
        over_sdpa, of_read = [], []
        for heads in (SMALL, LARGE):
            pool, stream = Pool(heads, dtype, [CONTEXT] * SEQUENCES), Stream(huge(256 << 20))
            times = rounds(
                {"read": stream, "sdpa": contiguous_attention(pool), "paged": pool.attention(bench.library)},
                bench.rounds,
            )
            layers = pool.num_bytes * pool.num_layers
            bench.say(describe(f"{type_name(dtype)} {heads}", times["paged"], layers, "GB/s"))
            read = [second * layers / stream.num_bytes for second in times["read"]]
            over_sdpa.append(Variant(str(heads), ratios(times["sdpa"], times["paged"])))
            of_read.append(Variant(str(heads), ratios(read, times["paged"])))
        found[f"decode-{type_name(dtype)}-sdpa"] = tuple(over_sdpa)
        found[f"decode-{type_name(dtype)}-read"] = tuple(of_read)
    return found


def mixed(bench: Bench) -> Findings:
    lengths = torch.linspace(512, 4096, SEQUENCES).int().tolist()
    variants = []
    for dtype in (torch.float32, torch.bfloat16):
        pool = Pool(SMALL, dtype, lengths)
        times = rounds({"sdpa": contiguous_attention(pool), "paged": pool.attention(bench.library)}, bench.rounds)
        variants.append(Variant(type_name(dtype), ratios(times["sdpa"], times["paged"])))
    return {"mixed": tuple(variants)}


def order(bench: Bench) -> Findings:
    variants = []
    for dtype in (torch.float32, torch.bfloat16):
        pools = {
            name: Pool(SMALL, dtype, [CONTEXT] * SEQUENCES, shuffled=name == "shuffled")
            for name in ("shuffled", "ordered")
        }
        times = rounds({name: pool.attention(bench.library) for name, pool in pools.items()}, bench.rounds)
        variants.append(Variant(type_name(dtype), ratios(times["ordered"], times["shuffled"])))
    return {"order": tuple(variants)}


def prefill(bench: Bench) -> Findings:
    variants = []
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
            name = f"{tokens} after {start}, {type_name(dtype)}"
            bench.say(describe(name, times["paged"], work, "GFLOP/s"))
            variants.append(Variant(name, ratios(times["sdpa"], times["paged"])))
    return {"prefill": tuple(variants)}


def _prefill_sdpa(query: torch.Tensor, context: torch.Tensor, mask: torch.Tensor | None) -> Callable[[], object]:
    queries = query.transpose(0, 1)[None].contiguous()
    return lambda: scaled_dot_product_attention(
        queries, context[0], context[1], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


def _prefill_paged(library: CpuLibrary, query: torch.Tensor, pool: Pool, batch: AttentionBatch) -> Callable[[], object]:
    keys, values = pool.pages[:, 0, 0], pool.pages[:, 0, 1]
    call = AttentionCall(query, keys, values, batch, pool.heads.size**-0.5)
    return lambda: paged_attention_cpu(library, call)
