"""The row of numba's decode attention, which stands in where no compiler is, against torch's in float32."""

from collections.abc import Callable

import torch

from pagefleet_kernels.jit import NumbaLibrary, NumbaUnavailable, load_numba
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.jit import paged_attention_numba
from tests.bench.kernel_bench import Bench, Findings
from tests.bench.kernel_goals import CannotMeasure, Variant
from tests.bench.kernel_timing import describe, ratios, rounds
from tests.bench.paged_data import CONTEXT, LARGE, SEQUENCES, SMALL, Pool, contiguous_attention


def numba_decode(bench: Bench) -> Findings:
    library = load_numba(bench.cache)
    if isinstance(library, NumbaUnavailable):
        raise CannotMeasure(library.reason)
    variants = []
    for heads in (SMALL, LARGE):
        pool = Pool(heads, torch.float32, [CONTEXT] * SEQUENCES)
        times = rounds({"sdpa": contiguous_attention(pool), "numba": _attention(library, pool)}, bench.rounds)
        bench.say(describe(f"float32 {heads}", times["numba"], pool.num_bytes * pool.num_layers, "GB/s"))
        variants.append(Variant(str(heads), ratios(times["sdpa"], times["numba"])))
    return {"numba": tuple(variants)}


def _attention(library: NumbaLibrary, pool: Pool) -> Callable[[], object]:
    scale = pool.heads.size**-0.5
    return pool.each_layer(
        lambda keys, values: paged_attention_numba(library, AttentionCall(pool.query, keys, values, pool.batch, scale))
    )
