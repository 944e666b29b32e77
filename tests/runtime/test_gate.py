"""The equality gate refuses attention that is wrong in one thing, and logits that are out of bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.attention import CURRENT_STEP, paged_attention_forward
from pagefleet_runtime.models.gate import (
    FLOAT32_BOUNDS,
    FP8_KV_BOUNDS,
    HALF_BOUNDS,
    INT8_WEIGHT_BOUNDS,
    Bounds,
    bounds_of,
    prove_structure,
    prove_weights,
)
from pagefleet_runtime.models.shrink import kept_layers, small_config
from tests.runtime.tiny_models import tiny_config

Attention = Callable[..., tuple[torch.Tensor, None]]


def with_argument(name: str, change: Callable[[Any], Any]) -> Attention:
    """Our attention, told something wrong."""

    def attention(*arguments: Any, **named: Any) -> tuple[torch.Tensor, None]:
        return paged_attention_forward(*arguments, **(named | {name: change(named.get(name))}))

    return attention


def heads_interleaved(module: Any, query: torch.Tensor, key: Any, *others: Any, **named: Any) -> Any:
    """Query head h reads key-value head h % H instead of h // group."""
    heads = torch.arange(query.shape[1]).view(-1, key.shape[1]).T.flatten()
    output, _ = paged_attention_forward(module, query[:, heads], key, *others, **named)
    return output[:, :, heads.argsort()], None


def with_rows(change: Callable[[BatchRow], BatchRow]) -> Attention:
    """Our attention on a batch whose rows say something wrong."""

    def attention(*arguments: Any, **named: Any) -> tuple[torch.Tensor, None]:
        step = CURRENT_STEP.get()
        rows = tuple(change(row) for row in step.batch.rows)
        token = CURRENT_STEP.set(replace(step, batch=AttentionBatch(rows, step.batch.block_size)))
        try:
            return paged_attention_forward(*arguments, **named)
        finally:
            CURRENT_STEP.reset(token)

    return attention


def one_slot_off(*arguments: Any, **named: Any) -> tuple[torch.Tensor, None]:
    step = CURRENT_STEP.get()
    token = CURRENT_STEP.set(replace(step, slots=step.slots.roll(1)))
    try:
        return paged_attention_forward(*arguments, **named)
    finally:
        CURRENT_STEP.reset(token)


def not_ours(module: Any, query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    return query.transpose(1, 2), None


def twice(*arguments: Any, **named: Any) -> tuple[torch.Tensor, None]:
    paged_attention_forward(*arguments, **named)
    return paged_attention_forward(*arguments, **named)


FAULTS: dict[str, tuple[str, Attention, str]] = {
    "scale": ("llama", with_argument("scaling", lambda scale: scale * 1.01), "differs"),
    "window forgotten": ("mistral", with_argument("sliding_window", lambda _: None), "differs"),
    "window one short": ("gemma3_text", with_argument("sliding_window", lambda w: w and w - 1), "differs"),
    "soft-cap forgotten": ("gemma2", with_argument("softcap", lambda _: None), "differs"),
    "sinks forgotten": ("gpt_oss", with_argument("s_aux", lambda _: None), "differs"),
    "head mapping": ("llama", heads_interleaved, "differs"),
    "position one early": (
        "llama",
        with_rows(lambda row: replace(row, start_position=max(0, row.start_position - 1))),
        "differs",
    ),
    "slots": ("llama", one_slot_off, "differs"),
    "attention that isn't called": ("llama", not_ours, "once in a step"),
    "attention called twice": ("llama", twice, "once in a step"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_attention_that_is_wrong_in_one_thing_is_refused(fault: str) -> None:
    family, attention, message = FAULTS[fault]
    name = f"broken_{fault.replace(' ', '_')}"
    AttentionInterface.register(name, attention)

    with pytest.raises(ModelRefused, match=message):
        prove_structure(tiny_config(family), attention_name=name)


def test_attention_that_goes_both_ways_is_refused() -> None:
    with pytest.raises(ModelRefused, match=r"differs|both directions"):
        prove_structure(tiny_config("gemma3_text", use_bidirectional_attention=True))


def test_a_small_model_has_a_layer_of_each_kind_and_its_own_head_mapping() -> None:
    config = tiny_config("gemma3_text", num_hidden_layers=6, layer_types=["sliding_attention"] * 5 + ["full_attention"])

    small = small_config(config)

    assert kept_layers(config) == [0, 5]
    assert small.layer_types == ["sliding_attention", "full_attention"]
    assert (small.sliding_window, config.sliding_window) == (8, 24)


def test_wide_models_shrink_by_whole_heads() -> None:
    small = small_config(tiny_config("llama", hidden_size=8192, num_attention_heads=64, num_key_value_heads=8))

    assert (small.hidden_size, small.num_attention_heads, small.num_key_value_heads) == (2048, 16, 2)


LOGITS = [torch.randn(30, 50, generator=torch.Generator().manual_seed(1)) * 3]


def test_equal_logits_pass_and_the_figures_are_told() -> None:
    assert "100.0% of greedy choices equal" in prove_weights(LOGITS, LOGITS, FLOAT32_BOUNDS)


@pytest.mark.parametrize(
    ("change", "bounds"),
    [
        (lambda logits: logits * 1.01, FLOAT32_BOUNDS),
        (lambda logits: logits * 1.5, HALF_BOUNDS),
        (lambda logits: logits * 1.5, INT8_WEIGHT_BOUNDS),
        (lambda logits: logits.roll(1, dims=0), INT8_WEIGHT_BOUNDS),
        (lambda logits: logits.roll(1, dims=0), HALF_BOUNDS),
        (lambda logits: logits.roll(1, dims=0), FP8_KV_BOUNDS),
        (lambda logits: logits.masked_fill(torch.arange(50) == 3, float("nan")), HALF_BOUNDS),
    ],
)
def test_logits_out_of_bounds_are_refused_with_the_numbers(change: Any, bounds: Any) -> None:
    with pytest.raises(ModelRefused, match=r"refused the weights: divergence .* on average.*allowed are"):
        prove_weights(LOGITS, [change(LOGITS[0])], bounds)


def test_the_rounding_of_half_precision_passes_its_bounds() -> None:
    assert prove_weights(LOGITS, [LOGITS[0].bfloat16()], HALF_BOUNDS)


@pytest.mark.parametrize(
    ("dtype", "stored", "int8_weights", "expected"),
    [
        (torch.float32, torch.float32, False, FLOAT32_BOUNDS),
        (torch.float32, torch.bfloat16, False, HALF_BOUNDS),
        (torch.float32, torch.int8, False, HALF_BOUNDS),
        (torch.bfloat16, torch.bfloat16, True, INT8_WEIGHT_BOUNDS),
        (torch.bfloat16, torch.int8, True, INT8_WEIGHT_BOUNDS),
        (torch.bfloat16, torch.uint8, True, FP8_KV_BOUNDS),
    ],
)
def test_a_models_bounds_are_the_widest_of_what_rounds_it(
    dtype: torch.dtype, stored: torch.dtype, int8_weights: bool, expected: Bounds
) -> None:
    assert bounds_of(dtype, stored, int8_weights=int8_weights) == expected
