"""The weights part of the equality gate: what the real model says to a few sentences, eager and paged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from pagefleet_contract.capacity import LayerShape
from pagefleet_kernels.choice import Kernels
from pagefleet_kernels.quantised_kv import Fp8Scales, fitting_fp8_scale
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.gate import bounds_of, prove_weights, run_paged

_SENTENCES = (
    "The capital of France is Paris, and the capital of Italy is Rome. A train between the two cities takes about "
    "eleven hours, with a change in Milan or in Turin.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "Water boils at 100 degrees at sea level. On a high mountain it boils sooner, because",
)
_LONGEST = 64


def gate_sequences(directory: Path, config: Any) -> list[list[int]]:
    """Return the built-in sentences as token ids; where the directory has no tokenizer.json, ids spread over the
    vocabulary, which any model answers to, if with nonsense."""
    path = directory / "tokenizer.json"
    longest = min(_LONGEST, getattr(config, "max_position_embeddings", None) or _LONGEST)
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
        sequences = [tokenizer.encode(sentence).ids[:longest] for sentence in _SENTENCES]
        if all(ids and max(ids) < config.vocab_size for ids in sequences):
            return sequences
    return [[(7 * i * i + 13 * i + seed) % config.vocab_size for i in range(longest)] for seed in range(3)]


def prove_paged_weights(
    model: PagedModel,
    layers: Sequence[LayerShape],
    sequences: Sequence[Sequence[int]],
    eager: Sequence[torch.Tensor],
    kv_dtype: torch.dtype,
    block_size: int,
    kernels: Kernels,
    fp8_scales: Sequence[Fp8Scales] = (),
) -> str:
    """Run the sequences on pages, chunked and together, and hold them against the eager logits. Return the figures.

    Raises ModelRefused.
    """
    cache = KVCache(
        layers, _blocks(sequences, block_size), block_size, kv_dtype, model.model.device, kernels, fp8_scales
    )
    cache.fill(float("nan"))
    paged = run_paged(model, cache, sequences, _chunks([len(ids) for ids in sequences]))
    return prove_weights(eager, paged, bounds_of(model.dtype, kv_dtype, int8_weights=kernels.linears == "int8"))


def measure_fp8_scales(
    model: PagedModel,
    layers: Sequence[LayerShape],
    sequences: Sequence[Sequence[int]],
    block_size: int,
    kernels: Kernels,
) -> list[Fp8Scales]:
    """Return each layer's scales, from the largest keys and values that the sequences give. Raises ModelRefused where
    those aren't numbers."""
    cache = KVCache(layers, _blocks(sequences, block_size), block_size, model.dtype, model.model.device, kernels)
    cache.buffer.zero_()
    run_paged(model, cache, sequences, _chunks([len(ids) for ids in sequences]))
    try:
        return [
            Fp8Scales(*(fitting_fp8_scale(float(pages.abs().max())) for pages in cache.pages(index)))
            for index in range(cache.num_layers)
        ]
    except ValueError as error:
        raise ModelRefused(f"keys and values have no fp8 codes: {error}; the model's weights may be broken") from error


def _blocks(sequences: Sequence[Sequence[int]], block_size: int) -> int:
    return 2 * sum(-(-len(ids) // block_size) for ids in sequences)


def _chunks(lengths: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Half of each sequence, then the rest but its last token, then that token as a decode."""
    edges = [(0, length // 2, length - 1, length) for length in lengths]
    steps = [
        [(index, edge[part], edge[part + 1] - edge[part]) for index, edge in enumerate(edges)] for part in range(3)
    ]
    return [[(index, start, count) for index, start, count in step if count > 0] for step in steps]
