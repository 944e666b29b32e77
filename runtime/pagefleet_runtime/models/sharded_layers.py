"""Layers that hold one rank's share of a weight, in the place of those that transformers divided by hooks.

They give what the hooked ones give, without the distributed tensors of each call, and their inner layers can be packed.
"""

import re
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


class RowParallelLinear(torch.nn.Module):
    """Each rank multiplies its share of the inputs; the products are summed."""

    linear: torch.nn.Module
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Module, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(x)
        dist.all_reduce(output)
        return output if self.bias is None else output + self.bias


class GatheredLinear(torch.nn.Module):
    """Each rank computes its share of the outputs; all get all of them."""

    def __init__(self, linear: torch.nn.Module, num_outputs: int) -> None:
        super().__init__()
        self.linear = linear
        self._num_outputs = num_outputs
        # A share is a rank's part of a torch.chunk: the last ones may be shorter.
        self._share = -(-num_outputs // dist.get_world_size())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self.linear(x)
        own = torch.nn.functional.pad(own, (0, self._share - own.shape[-1]))
        shares = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, own.contiguous())
        return torch.cat(shares, dim=-1)[..., : self._num_outputs]


class VocabularyParallelEmbedding(torch.nn.Module):
    """Each rank looks up the tokens that it holds; the others' vectors are 0 until they are summed."""

    def __init__(self, embedding: torch.nn.Embedding, weight: torch.Tensor) -> None:
        super().__init__()
        # The class may scale what it looks up, so it stays, with its share of the rows.
        self.embedding = embedding
        embedding.weight = _frozen(weight)
        self._first = dist.get_rank() * -(-embedding.num_embeddings // dist.get_world_size())
        embedding.padding_idx = None  # only training asks for it, and it may be another rank's

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        own = token_ids - self._first
        is_mine = (own >= 0) & (own < len(self.embedding.weight))
        vectors: torch.Tensor = self.embedding(own * is_mine).masked_fill(~is_mine[..., None], 0)
        dist.all_reduce(vectors)
        return vectors


def replace_hooked_layers(model: Any) -> None:
    """Put these layers in the place of the linear layers and the embedding that transformers divided. Others keep its
    hooks. An undivided model stays as it is."""
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            style = model.tp_plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", f"{path}.{name}".lstrip(".")))
            if is_hooked(child) and isinstance(getattr(child, "weight", None), DTensor):
                setattr(module, name, _replaced(child, style))


def is_hooked(module: torch.nn.Module) -> bool:
    """Whether the module does more than its class says: transformers wraps the forward of what it divides."""
    return "forward" in vars(module)


def _replaced(layer: Any, style: str | None) -> Any:
    if type(layer) is torch.nn.Linear and style == "colwise":
        return _own_share(layer, with_bias=True)
    if type(layer) is torch.nn.Linear and style == "rowwise":
        bias = layer.bias
        return RowParallelLinear(_own_share(layer, with_bias=False), None if bias is None else _local(bias))
    if type(layer) is torch.nn.Linear and style in ("colwise_gather_output", "colwise_rep"):
        return GatheredLinear(_own_share(layer, with_bias=True), layer.out_features)
    if isinstance(layer, torch.nn.Embedding) and style == "embedding_rowwise":
        weight = _local(layer.weight)
        del layer.forward
        return VocabularyParallelEmbedding(layer, weight)
    return layer


def _own_share(layer: torch.nn.Linear, *, with_bias: bool) -> torch.nn.Linear:
    weight = _local(layer.weight)
    share = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    share.weight = _frozen(weight)
    if with_bias and layer.bias is not None:
        share.bias = _frozen(_local(layer.bias))
    return share


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def _frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)
