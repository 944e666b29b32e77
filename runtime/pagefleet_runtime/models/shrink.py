"""A small configuration of the same kind of model: a few layers that cover every kind, windows and lengths of 8.

The shape of a layer's arithmetic stays (head mapping, sizes, norms, RoPE, soft-caps, sinks); only widths and counts
shrink, so that the equality gate takes about a second.
"""

import copy
from typing import Any

SMALL_LENGTH = 8
_VOCAB_SIZE = 256
_WIDTH = 64
_SMALL_HIDDEN_SIZE = 512
_LEAST_LAYERS = 2

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_CHOICES = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
_EXPERT_GROUPS = ("n_group", "topk_group")
_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")


def small_config(config: Any, num_ranks: int = 1) -> Any:
    """Return the small configuration, which as many ranks can share; `config` stays as it is."""
    small = copy.deepcopy(config)
    _keep_layers(small)
    _shrink_vocabulary(small)
    _shrink_widths(small)
    _shrink_experts(small)
    _shrink_heads(small, num_ranks)
    _shrink_lengths(small)
    return small


def kept_layers(config: Any) -> list[int]:
    """Return the first layer of each kind, two layers at least, in order."""
    count = config.num_hidden_layers
    kinds: dict[tuple[str, ...], int] = {}
    for index in range(count):
        kinds.setdefault(_kind(config, index), index)
    kept = set(kinds.values())
    kept.update(index for index in range(min(count, _LEAST_LAYERS)) if len(kept) < _LEAST_LAYERS)
    return sorted(kept)


def _kind(config: Any, index: int) -> tuple[str, ...]:
    """Return what tells this layer from others: per-layer lists, and counts of special layers at either end."""
    listed = [str(values[index]) for values in _per_layer_lists(config).values()]
    is_dense = index < (getattr(config, "first_k_dense_replace", 0) or 0)
    is_shared = index >= config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", 0) or 0)
    return (*listed, str(is_dense), str(is_shared))


def _per_layer_lists(config: Any) -> dict[str, list[Any]]:
    return {
        name: list(value)
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == config.num_hidden_layers
    }


def _keep_layers(small: Any) -> None:
    kept = kept_layers(small)
    lists = _per_layer_lists(small)
    dense = getattr(small, "first_k_dense_replace", None)
    shared = getattr(small, "num_kv_shared_layers", None)
    first_shared = small.num_hidden_layers - (shared or 0)
    small.num_hidden_layers = len(kept)
    for name, values in lists.items():
        setattr(small, name, [values[index] for index in kept])
    if dense:
        small.first_k_dense_replace = sum(index < dense for index in kept)
    if shared:
        small.num_kv_shared_layers = sum(index >= first_shared for index in kept)


def _shrink_vocabulary(small: Any) -> None:
    for name, value in list(vars(small).items()):
        if name.startswith("vocab_size") and isinstance(value, int):
            setattr(small, name, min(value, _VOCAB_SIZE))
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, None)


def _shrink_widths(small: Any) -> None:
    for name, value in list(vars(small).items()):
        if not name.endswith(_WIDTHS):
            continue
        if isinstance(value, int):
            setattr(small, name, min(value, _WIDTH))
        elif isinstance(value, list):
            setattr(small, name, [min(width, _WIDTH) for width in value])


def _shrink_experts(small: Any) -> None:
    for names, most in ((_EXPERT_COUNTS, 4), (_EXPERT_CHOICES, 2), (_EXPERT_GROUPS, 1)):
        for name in names:
            value = getattr(small, name, None)
            if isinstance(value, int):
                setattr(small, name, min(value, most))


def _shrink_heads(small: Any, num_ranks: int) -> None:
    """Divide heads, key-value heads and hidden size by one number; at least two key-value heads stay, so that a wrong
    mapping of heads shows."""
    heads = small.num_attention_heads
    kv_heads = getattr(small, "num_key_value_heads", None) or heads
    if not (isinstance(heads, int) and isinstance(kv_heads, int)):
        return
    divisor = 1
    while (
        small.hidden_size // divisor > _SMALL_HIDDEN_SIZE
        and all(value % (2 * divisor) == 0 for value in (small.hidden_size, heads, kv_heads))
        and (kv_heads // (2 * divisor)) % num_ranks == 0
        and kv_heads // (2 * divisor) >= 2
    ):
        divisor *= 2
    if divisor > 1:
        small.hidden_size //= divisor
        small.num_attention_heads //= divisor
        if getattr(small, "num_key_value_heads", None):
            small.num_key_value_heads //= divisor


def _shrink_lengths(small: Any) -> None:
    for name, value in list(vars(small).items()):
        if name in ("sliding_window", "original_max_position_embeddings") and isinstance(value, int) and value > 0:
            setattr(small, name, SMALL_LENGTH)
    parameters: dict[str, Any] = getattr(small, "rope_parameters", None) or {}
    for entry in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if entry.get("original_max_position_embeddings"):
            entry["original_max_position_embeddings"] = SMALL_LENGTH
