"""Our attention function on transformers' attention interface: write the new keys and values, attend to pages.

The step's metadata travels in a context variable, because not every model hands keyword arguments down to attention.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from pagefleet_kernels.paged_attention import AttentionBatch, paged_attention
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.kv_cache import KVCache

ATTENTION_NAME = "pagefleet_paged"

# What models hand to attention beside its arguments and what is safe to pass over: it says nothing about scores.
_IGNORED = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
        "is_causal",
        "cache",
        "past_key_values",
        "dropout",
    }
)


@dataclass
class PagedStep:
    """What attention needs to know of the running step; `calls` counts the calls of each layer. `unadded` is what a
    fused layer leaves to the norm behind it to add to the residual."""

    batch: AttentionBatch
    slots: torch.Tensor  # [T], where each token's key and value go
    cache: KVCache
    calls: dict[int, int] = field(default_factory=dict)
    unadded: torch.Tensor | None = None  # [T, N]

    def count_call(self, layer_index: int) -> None:
        self.calls[layer_index] = self.calls.get(layer_index, 0) + 1


CURRENT_STEP: ContextVar[PagedStep] = ContextVar("pagefleet_current_step")


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, Hq, T, D]
    key: torch.Tensor,  # [1, H, T, D]
    value: torch.Tensor,  # [1, H, T, Dv]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Be the attention of one layer of a packed step, as transformers calls it. Returns ([1, T, Hq, Dv], None)."""
    _refuse_unknown(module, attention_mask, others)
    step = CURRENT_STEP.get()
    layer_index = int(module.layer_idx)  # type: ignore[arg-type]
    step.count_call(layer_index)
    key_pages, value_pages = step.cache.pages(layer_index)
    step.cache.write(layer_index, key[0].transpose(0, 1), value[0].transpose(0, 1), step.slots)
    output = paged_attention(
        query[0].transpose(0, 1),
        key_pages,
        value_pages,
        step.batch,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
        scales=step.cache.scales(layer_index),
        kernels=step.cache.kernels.pages,
    )
    return output[None], None


def register_attention() -> None:
    """Make our function known to transformers. No mask function goes with it, so models build no masks."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


def _refuse_unknown(module: torch.nn.Module, attention_mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    name = type(module).__name__
    if attention_mask is not None:
        raise ModelRefused(
            f"{name} hands a mask of its own to attention; only causal and sliding attention is supported"
        )
    if getattr(module, "is_causal", True) is False or others.get("is_causal") is False:
        raise ModelRefused(f"{name} attends in both directions; only causal attention is supported")
    for key, value in others.items():
        if key not in _IGNORED and value is not None and value is not False:
            raise ModelRefused(
                f"{name} hands {key!r} to attention, which paged attention doesn't know; it knows scaling, "
                "sliding_window, softcap and s_aux"
            )
