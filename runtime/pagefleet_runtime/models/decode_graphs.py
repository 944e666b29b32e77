"""Decode steps recorded as CUDA graphs at load, and held against the same steps launched one by one."""

from dataclasses import dataclass

import torch

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.bucketed_model import BucketedModel, Record
from pagefleet_runtime.model_executor.cuda_graphs import CudaGraphs
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import pack
from pagefleet_runtime.model_executor.paged_model import PagedModel, StepModel
from pagefleet_runtime.models.gate import Bounds, prove_weights
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey

# Beyond this a GPU has enough to do with each kernel, and logits for each bucket would take much memory.
_MOST_ROWS = 256
_COST = "decode steps run without CUDA graphs, and wait for the launch of each kernel"
# Products of other shapes round otherwise, and a few rows may hold a near tie; a step that went wrong is far beyond.
_BOUNDS = Bounds(largest_divergence=0.25, mean_divergence=0.25, agreement=0.0)


@dataclass(frozen=True, slots=True)
class DecodeGraphs:
    """The model that runs steps; what is recorded of it, and what isn't and what that costs, in words."""

    model: StepModel
    description: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def with_decode_graphs(
    model: PagedModel, cache: KVCache, max_rows: int, max_length: int, num_ranks: int
) -> DecodeGraphs:
    """Record the model's decode steps, where device and kernels allow that. The cache must hold nothing that is
    needed."""
    if cache.device.type != "cuda" or cache.kernels.pages.decodes is None:
        return DecodeGraphs(model)
    if num_ranks > 1:
        return DecodeGraphs(model, notes=(f"{_COST}: they aren't recorded where several processes compute one model",))
    most_rows = min(max_rows, cache.num_blocks, _MOST_ROWS)
    return record_decodes(model, cache, most_rows, max_length, CudaGraphs(cache.device).record)


def record_decodes(model: PagedModel, cache: KVCache, max_rows: int, max_length: int, record: Record) -> DecodeGraphs:
    """Record the model's decode steps and prove them. Where a forward does what can't be recorded, where memory ends or
    where a replay gives something else, the model stays as it is."""
    try:
        bucketed = BucketedModel(model, cache, max_rows, max_length, record)
        _prove_buckets(bucketed, model, cache)
    except (RuntimeError, ValueError, ModelRefused) as error:
        return DecodeGraphs(model, notes=(f"{_COST}: {error}",))
    return DecodeGraphs(bucketed, (f"CUDA graphs for decodes of up to {max_rows} rows",))


def _prove_buckets(bucketed: BucketedModel, model: PagedModel, cache: KVCache) -> None:
    """Raise ModelRefused unless a padded step gives what the same step gives by itself."""
    cache.buffer[:1].zero_()
    rows = [
        Row(SequenceKey("gate", index), (index + 1,), index, (0,))
        for index in range(min(3, cache.block_size, bucketed.buckets[-1]))
    ]
    packed, keep = pack(rows, cache.block_size), torch.arange(len(rows))
    expected = model.forward(packed, cache, keep).logits.clone()
    prove_weights([expected], [bucketed.forward(packed, cache, keep).logits], _BOUNDS)
