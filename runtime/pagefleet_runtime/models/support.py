"""Which models can run on pages, decided from configuration and class before any weight is read.

It refuses by name what is known not to work. What passes must still pass the equality gate.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_runtime.errors import ModelRefused

_SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention"})

# Configuration fields that say that some layers keep another state than keys and values, and what those layers are.
_STATE_FIELDS = {
    "mamba_d_state": "Mamba",
    "mamba_n_heads": "Mamba",
    "ssm_state_size": "Mamba",
    "state_size": "Mamba",
    "conv_L_cache": "convolution",
    "linear_num_value_heads": "linear attention",
    "linear_attention_config": "linear attention",
    "lru_width": "recurrent",
    "attention_hidden_size": "recurrent",
    "attention_chunk_size": "chunked attention",
    "index_topk": "sparse attention",
}

# RoPE types whose frequencies follow the longest position of the batch, so that a request's keys would depend on its
# neighbours.
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_config(config: Any) -> None:
    """Raise ModelRefused where the configuration names something that pages can't serve."""
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelRefused(f"model type {kind!r} is an encoder-decoder; only decoders are supported")
    if config.get_text_config() is not config:
        raise ModelRefused(f"model type {kind!r} takes more than text; only text decoders are supported")
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else "unknown"
        raise ModelRefused(
            f"the checkpoint is quantised ({method}); serve one in bfloat16, float16 or float32, or a GGUF file"
        )
    _check_layer_types(kind, config)
    for rope_type in sorted(rope_types(config) & _BATCH_DEPENDENT_ROPE):
        raise ModelRefused(
            f"model type {kind!r} uses RoPE of type {rope_type!r}, whose frequencies depend on the longest request of "
            "a batch, so that answers would depend on other requests; RoPE types default, linear, yarn and llama3 are "
            "supported"
        )


def check_class(model_class: type) -> None:
    """Raise ModelRefused where the class doesn't use transformers' attention interface or can't pick its logits."""
    name = model_class.__name__
    if not getattr(model_class, "_can_set_attn_implementation", lambda: False)():
        raise ModelRefused(
            f"{name} doesn't use transformers' attention interface, so its attention can't be replaced by the paged "
            "one; choose a model whose layers are full or sliding-window attention through that interface"
        )
    if "logits_to_keep" not in inspect.signature(model_class.forward).parameters:  # type: ignore[attr-defined]
        raise ModelRefused(f"{name}.forward has no logits_to_keep, so it would compute logits of every token")


def rope_types(config: Any) -> frozenset[str]:
    """Return the RoPE types that the configuration names; some models have one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return frozenset(str(entry["rope_type"]) for entry in (parameters, *nested) if "rope_type" in entry)


def _check_layer_types(kind: str, config: Any) -> None:
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        _refuse_layers(kind, layer_types)
        # The list says what each layer is, so fields of kinds that don't occur mean nothing.
        return
    for field, layers in _STATE_FIELDS.items():
        if getattr(config, field, None) is not None:
            raise ModelRefused(
                f"model type {kind!r} has {layers} layers (its configuration has {field}); every layer must be full or "
                "sliding-window attention"
            )


def _refuse_layers(kind: str, layer_types: Iterable[str]) -> None:
    others = sorted(set(layer_types) - _SUPPORTED_LAYERS)
    if others:
        raise ModelRefused(
            f"model type {kind!r} has layers of type {', '.join(others)}; every layer must be full_attention or "
            "sliding_attention"
        )
