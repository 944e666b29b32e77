"""The row of decode attention over int8 keys and values, against the same over bfloat16: half the bytes, and the codes
to be made numbers again."""

from collections.abc import Callable

import torch

from pagefleet_contract.capacity import LayerShape
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from pagefleet_runtime.model_executor.kv_cache import KVCache
from tests.bench.kernel_bench import Bench, Findings
from tests.bench.kernel_goals import Variant
from tests.bench.kernel_timing import cycle, describe, ratios, rounds
from tests.bench.paged_data import BLOCK_SIZE, CONTEXT, LARGE, SEQUENCES, SMALL, Heads, Pool


def int8_decode(bench: Bench) -> Findings:
    variants = []
    for heads in (SMALL, LARGE):
        pool = Pool(heads, torch.bfloat16, [CONTEXT] * SEQUENCES)
        cache = _filled_cache(heads, pool.num_layers)
        times = rounds(
            {"bfloat16": pool.attention(bench.library), "int8": _attention(bench, pool, cache)}, bench.rounds
        )
        bench.say(describe(f"int8 {heads}", times["int8"], cache.buffer.numel(), "GB/s"))
        variants.append(Variant(str(heads), ratios(times["int8"], times["bfloat16"])))
    return {"int8-kv": tuple(variants)}


def _filled_cache(heads: Heads, num_layers: int) -> KVCache:
    """A cache as the engine has it, scales in the pages, which hold as many layers and tokens as the pool."""
    shape = LayerShape(heads.kv, heads.size, heads.size)
    cache = KVCache([shape] * num_layers, SEQUENCES * CONTEXT // BLOCK_SIZE, BLOCK_SIZE, torch.int8)
    slots = torch.arange(SEQUENCES * CONTEXT)
    for layer in range(num_layers):
        new = torch.randn(len(slots), heads.kv, heads.size)
        cache.write(layer, new, new, slots)
    return cache


def _attention(bench: Bench, pool: Pool, cache: KVCache) -> Callable[[], object]:
    scale = pool.heads.size**-0.5
    return cycle(
        lambda layer: paged_attention_cpu(
            bench.library,
            AttentionCall(pool.query, *cache.pages(layer), pool.batch, scale, scales=cache.scales(layer)),
        ),
        cache.num_layers,
    )
