"""The rows of linear layers with packed weights, against torch's own in float32."""

import torch
from torch.nn.functional import linear

from pagefleet_kernels.prepacked_linear import PrepackedLinear, WeightMemory
from tests.bench.kernel_bench import Bench, Findings
from tests.bench.kernel_goals import Variant
from tests.bench.kernel_timing import cycle, ratios, rounds
from tests.bench.paged_data import type_name


def prepacked(bench: Bench) -> Findings:
    return {f"linear-{type_name(dtype)}": _variants(bench, dtype) for dtype in (torch.float32, torch.bfloat16)}


def _variants(bench: Bench, dtype: torch.dtype) -> tuple[Variant, ...]:
    variants = []
    for size_out, size_in, copies in ((1536, 576, 24), (8192, 2048, 3)):
        weights = [torch.randn(size_out, size_in) / size_in**0.5 for _ in range(copies)]
        memory = WeightMemory()
        packed = [PrepackedLinear([w.to(dtype)], library=bench.library, memory=memory) for w in weights]
        for tokens in (1, 8, 32):
            x = torch.randn(tokens, size_in)
            times = _times(weights, packed, x, x.to(dtype), bench.rounds)
            variants.append(Variant(f"{size_out}x{size_in}, {tokens} rows", ratios(times["plain"], times["packed"])))
    return tuple(variants)


def _times(
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
