"""Time the engine's decode step with its kernels launched one by one, and replayed as a recorded graph."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pagefleet_kernels.choice import Kernels
from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.triton_pages import TritonPages
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.bucketed_model import BucketedModel, Record
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import pack
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey
from tests.gpu.measure import Clock, Line

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """The model is of random weights; the defaults are SmolLM2-135M's."""

    layers: int = 30
    hidden: int = 576
    intermediate: int = 1536
    heads: int = 9
    kv_heads: int = 3
    vocabulary: int = 49152
    context: int = 1024
    rows: tuple[int, ...] = (1, 8, 32)


def engine_lines(chip: Chip, device: torch.device, clock: Clock, sizes: EngineSizes, record: Record) -> list[Line]:
    model, cache = _model_and_cache(chip, device, sizes)
    bucketed = BucketedModel(model, cache, max(sizes.rows), sizes.context, record)
    lines = []
    for num_rows in sizes.rows:
        packed, keep = pack(_rows(num_rows, sizes.context), BLOCK_SIZE), torch.arange(num_rows)
        launched = clock.eager_seconds(lambda: model.forward(packed, cache, keep))  # noqa: B023 - called at once
        replayed = clock.eager_seconds(lambda: bucketed.forward(packed, cache, keep))  # noqa: B023 - called at once
        name = f"engine step, {num_rows} rows"
        lines.append(Line(f"{name}, launched", launched, ""))
        lines.append(Line(f"{name}, replayed", replayed, "", launched / replayed, "launched", 1.0))
    return lines


def _model_and_cache(chip: Chip, device: torch.device, sizes: EngineSizes) -> tuple[PagedModel, KVCache]:
    register_attention()
    config = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.context, dtype="bfloat16",
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.to(device, torch.bfloat16).eval()
    layers = observe_layers(model)
    model.set_attn_implementation(ATTENTION_NAME)
    num_blocks = max(sizes.rows) * -(-sizes.context // BLOCK_SIZE)
    cache = KVCache(layers, num_blocks, BLOCK_SIZE, torch.bfloat16, device, Kernels(TritonPages(chip)))
    cache.fill(0.5)
    return PagedModel(model), cache


def _rows(num_rows: int, context: int) -> list[Row]:
    pages = -(-context // BLOCK_SIZE)
    return [
        Row(SequenceKey(str(i), 0), (i + 1,), context - 1, tuple(range(i * pages, (i + 1) * pages)))
        for i in range(num_rows)
    ]
