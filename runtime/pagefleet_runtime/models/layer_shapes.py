"""What each layer of a model stores, found by watching one forward pass: configurations say it in too many ways."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from pagefleet_contract.capacity import LayerShape
from pagefleet_runtime.errors import ModelRefused

_PROBE_NAME = "pagefleet_probe"


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer's attention: what it stores, and how many heads ask for it."""

    stored: LayerShape
    num_query_heads: int

    def like(self, dtype: torch.dtype, kv_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a query and pages of keys and of values with its sizes and these types, and nothing in them."""
        heads = self.stored.num_kv_heads
        return (
            torch.empty(1, self.num_query_heads, self.stored.key_size, dtype=dtype, device="meta"),
            torch.empty(1, 1, heads, self.stored.key_size, dtype=kv_dtype, device="meta"),
            torch.empty(1, 1, heads, self.stored.value_size, dtype=kv_dtype, device="meta"),
        )


_SEEN: ContextVar[dict[int, AttentionLayer]] = ContextVar("pagefleet_seen_layers")


def observe_layers(model: Any) -> tuple[LayerShape, ...]:
    """Return what the layers store, as observe_attention finds it."""
    return tuple(layer.stored for layer in observe_attention(model))


def observe_attention(model: Any) -> tuple[AttentionLayer, ...]:
    """Return the layers, in order. The model is left with the probe as its attention: set another after it.

    Raises ModelRefused where not every layer calls attention.
    """
    AttentionInterface.register(_PROBE_NAME, _probe)
    model.set_attn_implementation(_PROBE_NAME)
    seen: dict[int, AttentionLayer] = {}
    token = _SEEN.set(seen)
    try:
        with torch.inference_mode():
            first = torch.zeros(1, 1, dtype=torch.long, device=model.device)
            model(input_ids=first, position_ids=first, use_cache=False)
    finally:
        _SEEN.reset(token)
    expected = set(range(model.config.num_hidden_layers))
    if set(seen) != expected:
        raise ModelRefused(
            f"{type(model).__name__} has {len(expected)} layers but layers {sorted(seen)} call attention; every layer "
            "must be full or sliding-window attention through transformers' attention interface"
        )
    return tuple(seen[index] for index in sorted(seen))


def _probe(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    index = getattr(module, "layer_idx", None)
    if index is None:
        raise ModelRefused(f"{type(module).__name__} doesn't say which layer it is (layer_idx)")
    stored = LayerShape(key.shape[1], key.shape[3], value.shape[3])
    _SEEN.get()[index] = AttentionLayer(stored, query.shape[1])
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
