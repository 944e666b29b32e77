"""The rows of linear layers on int8 codes: few rows against torch's own in float32, more against packed bfloat16."""

import torch
from torch.nn.functional import linear

from pagefleet_kernels.prepacked_linear import PrepackedLinear, Quantization, WeightMemory
from tests.bench.kernel_bench import Bench, Findings
from tests.bench.kernel_goals import Variant
from tests.bench.kernel_timing import cycle, ratios, rounds

# Outputs, inputs, and so many layers that their weights come from memory.
_SHAPES = ((1536, 576, 48), (8192, 2048, 3))


def int8_linears(bench: Bench) -> Findings:
    few, many = [], []
    for outputs, inputs, copies in _SHAPES:
        weights = [torch.randn(outputs, inputs) / inputs**0.5 for _ in range(copies)]
        int8, bfloat16 = _packed(bench, weights, "int8"), _packed(bench, weights, "none")
        for tokens in (1, 4):
            x = torch.randn(tokens, inputs)
            name = f"{outputs}x{inputs}, {tokens} rows"
            few.append(Variant(name, _against_float32(weights, int8, x, bench.rounds)))
        for tokens in (32, 512):
            x = torch.randn(tokens, inputs).bfloat16()
            many.append(Variant(f"{outputs}x{inputs}, {tokens} rows", _against(bfloat16, int8, x, bench.rounds)))
    return {"linear-int8": tuple(few), "linear-int8-bfloat16": tuple(many)}


def _packed(bench: Bench, weights: list[torch.Tensor], quantization: Quantization) -> list[PrepackedLinear]:
    memory = WeightMemory()
    return [
        PrepackedLinear([weight.bfloat16()], library=bench.library, memory=memory, quantization=quantization)
        for weight in weights
    ]


def _against_float32(
    weights: list[torch.Tensor], packed: list[PrepackedLinear], x: torch.Tensor, count: int
) -> tuple[float, ...]:
    narrow = x.bfloat16()
    with torch.inference_mode():
        times = rounds(
            {
                "plain": cycle(lambda i: linear(x, weights[i]), len(weights)),
                "int8": cycle(lambda i: packed[i](narrow), len(packed)),
            },
            count,
        )
    return ratios(times["plain"], times["int8"])


def _against(
    others: list[PrepackedLinear], packed: list[PrepackedLinear], x: torch.Tensor, count: int
) -> tuple[float, ...]:
    with torch.inference_mode():
        times = rounds(
            {
                "others": cycle(lambda i: others[i](x), len(others)),
                "int8": cycle(lambda i: packed[i](x), len(packed)),
            },
            count,
        )
    return ratios(times["others"], times["int8"])
