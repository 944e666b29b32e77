"""Which models can be divided over ranks, and by how many: transformers' plan for the architecture, and its heads."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from transformers.distributed.configuration_utils import DistributedConfig

from pagefleet_runtime.errors import ModelRefused

# What makes the keys: where it isn't divided by its outputs, every rank would hold every head.
_KEY_PROJECTIONS = ("k_proj", "qkv_proj", "query_key_value")
# How long a rank waits for the others in one operation: the last resort, far beyond what any of them takes.
_COLLECTIVE_SECONDS = 300


def check_divides(config: Any, num_ranks: int) -> None:
    """Raise ModelRefused where the model can't be divided over that many ranks."""
    if num_ranks == 1:
        return
    plan = getattr(config, "base_model_tp_plan", None) or {}
    if not any(name.endswith(_KEY_PROJECTIONS) and style == "colwise" for name, style in plan.items()):
        raise ModelRefused(
            f"parallel.tensor is {num_ranks}, but transformers has no tensor parallel plan that divides the attention "
            f"heads of model type {config.model_type!r}; set it to 1 (in a resource: accelerator.count)"
        )
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if heads % num_ranks or kv_heads % num_ranks:
        possible = [str(n) for n in range(1, kv_heads + 1) if heads % n == 0 and kv_heads % n == 0]
        raise ModelRefused(
            f"parallel.tensor is {num_ranks}, but the model has {heads} heads and {kv_heads} key-value heads, which "
            f"can't be divided by it; set it to one of {', '.join(possible)} (in a resource: accelerator.count)"
        )


def loading_arguments(num_ranks: int) -> dict[str, Any]:
    """Return what makes `from_pretrained` read this rank's share alone."""
    return {} if num_ranks == 1 else {"distributed_config": DistributedConfig(tp_size=num_ranks, tp_plan="auto")}


def join_group(device: torch.device, rank: int, num_ranks: int, store: str) -> None:
    """Become one of the process's group; all ranks must call it at about the same time. `store` is a file of theirs."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here; a host's name may lead anywhere
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=FileStore(store, num_ranks),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=_COLLECTIVE_SECONDS),
        device_id=None if device.type == "cpu" else device,
    )
