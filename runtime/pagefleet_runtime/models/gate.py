"""The equality gate: a model is served only where its paged path is proven equal to its own eager attention.

Structure: a small random model of the same class, in float32, in a mixed and chunked batch. Weights: the real model's
own logits before and after its attention was replaced.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from pagefleet_kernels.choice import PLAIN, Kernels
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import pack
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.models.sharding import loading_arguments
from pagefleet_runtime.models.shrink import small_config
from pagefleet_runtime.models.speed_up import speed_up
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey

# In units of the eager logits' standard deviation.
STRUCTURE_TOLERANCE = 1e-4
_CPU = torch.device("cpu")

# (sequence, first position, tokens) of each step: prefill beside prefill, decode beside prefill, decodes only.
_SCHEDULE = (
    ((0, 0, 10), (1, 0, 13)),
    ((0, 10, 1), (1, 13, 1), (2, 0, 5)),
    ((1, 14, 1), (0, 11, 9), (2, 5, 1)),
    ((0, 20, 1), (1, 15, 1), (2, 6, 1)),
)
_LENGTHS = (21, 16, 7)
_BLOCK_SIZE = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the real model's paged logits may be from its eager ones: the largest and the mean Kullback-Leibler
    divergence over positions, in nats, and the least share of equal greedy choices."""

    largest_divergence: float
    mean_divergence: float
    agreement: float


# Half precision rounds on both paths: eager against itself in float32 is already that far off, so the bounds there
# only catch what no rounding explains. The structure part is the sharp one.
FLOAT32_BOUNDS = Bounds(1e-4, 1e-5, 0.99)
HALF_BOUNDS = Bounds(0.25, 0.02, 0.9)
# Weights and activations in int8 codes lose more. Measured on SmolLM2-135M in bfloat16 (divergence on average, at most,
# equal choices): 0.009, 0.05 and 94 %, where bfloat16 alone has 0.002, 0.02 and 97 %; codes without the rotation before
# them 0.053, 0.38 and 84 %, which is to be refused. Gemma 3 270M: 0.007, 0.06 and 96 %.
INT8_WEIGHT_BOUNDS = Bounds(0.25, 0.03, 0.85)
# Codes in eight bits round keys and values once more, the same whatever the kernels. Measured on SmolLM2-135M in
# float32 and bfloat16 (divergence on average, at most, equal choices): int8 0.0009, 0.006, 100 % and 0.003, 0.03,
# 97 %, which is half precision's own noise; fp8 0.009, 0.07, 95 % and 0.013, 0.12, 92 %. A mistake in codes or scales
# costs nats.
INT8_KV_BOUNDS = HALF_BOUNDS
FP8_KV_BOUNDS = Bounds(1.0, 0.1, 0.75)


def bounds_of(dtype: torch.dtype, kv_dtype: torch.dtype, *, int8_weights: bool) -> Bounds:
    """Return the bounds of a model of `dtype` whose keys and values are stored as `kv_dtype`: of several that apply,
    the widest."""
    bounds = [FLOAT32_BOUNDS if dtype == kv_dtype == torch.float32 else HALF_BOUNDS]
    bounds += [INT8_WEIGHT_BOUNDS] * int8_weights
    bounds += [INT8_KV_BOUNDS] * (kv_dtype == torch.int8) + [FP8_KV_BOUNDS] * (kv_dtype == torch.uint8)
    return Bounds(
        max(each.largest_divergence for each in bounds),
        max(each.mean_divergence for each in bounds),
        min(each.agreement for each in bounds),
    )


def prove_structure(
    config: Any,
    attention_name: str = ATTENTION_NAME,
    kernels: Kernels = PLAIN,
    num_ranks: int = 1,
    device: torch.device = _CPU,
) -> None:
    """Raise ModelRefused where a small model of this configuration's kind isn't equal under paged attention, run by
    these kernels on the device, sped up for them, and divided over the ranks, all of which call this."""
    register_attention()
    generator = torch.Generator().manual_seed(0)
    try:
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            small_config(config, num_ranks), attn_implementation="eager", dtype=torch.float32, trust_remote_code=False
        ).eval()
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ModelRefused(f"no small model of type {config.model_type!r} can be built to prove it: {error}") from error
    _randomise(model, generator)
    model.to(device)
    vocab_size = model.config.vocab_size
    sequences = [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in _LENGTHS]
    eager = [eager_logits(model, ids) for ids in sequences]
    paged = _paged_logits(_divided(model, num_ranks), sequences, attention_name, kernels)
    difference = max(float((a - b).abs().max() / a.std()) for a, b in zip(eager, paged, strict=True))
    if not difference <= STRUCTURE_TOLERANCE:
        divided = "" if num_ranks == 1 else f" divided over {num_ranks} ranks"
        raise ModelRefused(
            f"the equality gate refused model type {config.model_type!r}{divided}: paged attention differs from the "
            f"model's own by {difference:.2g} standard deviations of its logits, {STRUCTURE_TOLERANCE} is allowed; its "
            "attention has something that paged attention doesn't know"
        )


def prove_weights(eager: Sequence[torch.Tensor], paged: Sequence[torch.Tensor], bounds: Bounds) -> str:
    """Return the measured figures in words. Raises ModelRefused where they are out of bounds."""
    reference = torch.log_softmax(torch.cat(list(eager)).float(), dim=-1)
    ours = torch.log_softmax(torch.cat(list(paged)).float(), dim=-1)
    terms = torch.where(reference == float("-inf"), 0.0, reference.exp() * (reference - ours))
    divergence = terms.nan_to_num(nan=float("inf")).sum(dim=-1)
    largest, mean = float(divergence.max()), float(divergence.mean())
    agreement = float((reference.argmax(dim=-1) == ours.argmax(dim=-1)).double().mean())
    figures = f"divergence {mean:.2g} on average, {largest:.2g} at most; {agreement:.1%} of greedy choices equal"
    within = largest <= bounds.largest_divergence and mean <= bounds.mean_divergence and agreement >= bounds.agreement
    if not within:
        raise ModelRefused(
            f"the equality gate refused the weights: {figures}; allowed are {bounds.mean_divergence} on average, "
            f"{bounds.largest_divergence} at most, and at least {bounds.agreement:.0%}"
        )
    return figures


def eager_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """Return the logits [T, V] of one sequence by the model's own attention."""
    with torch.inference_mode():
        logits: torch.Tensor = model(
            input_ids=torch.tensor([list(token_ids)], device=model.device), use_cache=False
        ).logits[0]
    return logits


def run_paged(
    model: PagedModel,
    cache: KVCache,
    sequences: Sequence[Sequence[int]],
    schedule: Sequence[Sequence[tuple[int, int, int]]],
) -> list[torch.Tensor]:
    """Return the logits [T, V] of each sequence, computed on pages in the schedule's steps.

    Raises ModelRefused where a layer's attention isn't called exactly once in a step.
    """
    tables = _shuffled_tables(cache, sequences)
    collected: list[list[torch.Tensor]] = [[] for _ in sequences]
    for step in schedule:
        rows = [
            Row(SequenceKey(str(index), 0), tuple(sequences[index][start : start + count]), start, tables[index])
            for index, start, count in step
        ]
        packed = pack(rows, cache.block_size)
        result = model.forward(packed, cache, torch.arange(packed.batch.num_tokens))
        _check_calls(result.calls, cache.num_layers)
        for row, first in zip(packed.rows, packed.first_tokens, strict=True):
            collected[int(row.key.request_id)].append(result.logits[first : first + len(row.token_ids)])
    return [torch.cat(parts) for parts in collected]


def _check_calls(calls: dict[int, int], num_layers: int) -> None:
    if calls != dict.fromkeys(range(num_layers), 1):
        raise ModelRefused(
            f"each of {num_layers} layers must call paged attention once in a step, but the calls by layer were "
            f"{dict(sorted(calls.items()))}"
        )


def _shuffled_tables(cache: KVCache, sequences: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    blocks = list(range(cache.num_blocks))
    random.Random(0).shuffle(blocks)
    counts = [-(-len(ids) // cache.block_size) for ids in sequences]
    return [tuple(blocks.pop() for _ in range(count)) for count in counts]


def _divided(model: Any, num_ranks: int) -> Any:
    """Return this rank's share, made as the real model's is."""
    if num_ranks == 1:
        return model
    return (
        type(model)
        .from_pretrained(
            None,
            config=model.config,
            state_dict=model.state_dict(),
            attn_implementation="eager",
            dtype=torch.float32,
            **loading_arguments(num_ranks),
        )
        .to(model.device)
        .eval()
    )


def _paged_logits(
    model: Any, sequences: Sequence[Sequence[int]], attention_name: str, kernels: Kernels
) -> list[torch.Tensor]:
    layers = observe_layers(model)
    model.set_attn_implementation(attention_name)
    speed_up(model, kernels)
    cache = KVCache(layers, 2 * sum(_LENGTHS) // _BLOCK_SIZE, _BLOCK_SIZE, torch.float32, model.device, kernels)
    cache.fill(float("nan"))
    return run_paged(PagedModel(model), cache, sequences, _SCHEDULE)


def _randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Give the model weights at which a mistake shows: usual first weights make attention nearly uniform."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in embeddings:
                parameter.copy_(noise)
            elif parameter.dim() >= 2:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(noise * 0.2)
