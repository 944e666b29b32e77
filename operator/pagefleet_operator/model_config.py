"""What a model's config.json says about its KV: layers, heads, sizes. Pure."""

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.capacity import DTYPE_BYTES, LayerShape, ModelShape, ModelWidths


class UnknownShape(Exception):
    """The configuration doesn't say what a token's keys and values are; the message names what is missing."""


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the layers that store keys and values. Raises UnknownShape."""
    text = config.get("text_config") or config
    layer = _latent_layer(text) if text.get("kv_lora_rank") else _plain_layer(text)
    return ModelShape((layer,) * _number(text, "num_hidden_layers"))


def widths_of(config: Mapping[str, Any]) -> ModelWidths | None:
    """Return what a step's intermediate values are as wide as, or None where it isn't said. Some models have a width
    of the feed-forward for each layer."""
    text = config.get("text_config") or config
    vocab_size, hidden_size = text.get("vocab_size"), text.get("hidden_size")
    if not isinstance(vocab_size, int) or not isinstance(hidden_size, int):
        return None
    said = text.get("intermediate_size")
    widths = [width for width in (said if isinstance(said, list) else [said]) if isinstance(width, int)]
    return ModelWidths(vocab_size, hidden_size, max(widths, default=4 * hidden_size))


def max_length_of(config: Mapping[str, Any]) -> int | None:
    value = (config.get("text_config") or config).get("max_position_embeddings")
    return value if isinstance(value, int) and value > 0 else None


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the type that the weights are stored in, or None where it isn't said or is none that we know."""
    text = config.get("text_config") or {}
    said = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return said if isinstance(said, str) and said in DTYPE_BYTES else None


def _plain_layer(text: Mapping[str, Any]) -> LayerShape:
    heads = _number(text, "num_attention_heads")
    head_size = text.get("head_dim") or _number(text, "hidden_size") // heads
    return LayerShape(text.get("num_key_value_heads") or heads, head_size, head_size)


def _latent_layer(text: Mapping[str, Any]) -> LayerShape:
    """Latent attention is stored expanded: every head has its keys and values."""
    key_size = _number(text, "qk_nope_head_dim") + _number(text, "qk_rope_head_dim")
    return LayerShape(_number(text, "num_attention_heads"), key_size, _number(text, "v_head_dim"))


def _number(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if not isinstance(value, int) or value <= 0:
        raise UnknownShape(f"its config.json says {name}: {value!r}; a positive number is needed to count its KV")
    return value
