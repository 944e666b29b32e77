"""Layers of the llama-like families with fewer, larger operations, put in the place of transformers' own.

A fused layer reads its weights from the layer that it replaces and gives that layer's result up to rounding; the
equality gate holds it to that. Queries, keys and values are one product, as are gate and factor; norms take the
residual addition with them; rotation and write are one pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet_kernels.cpu.cache import MOST_ROTATED, PageWriter, Rotation
from pagefleet_kernels.cpu.library import CpuLibrary
from pagefleet_kernels.decoder_layer import DecoderLayer, LayerNorm, LayerStep, LayerWeights, can_attend
from pagefleet_kernels.gated_activation import Activation
from pagefleet_kernels.paged_attention import paged_attention
from pagefleet_kernels.prepacked_linear import LinearCall, PrepackedLinear
from pagefleet_kernels.rms_norm import rms_norm
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.attention import CURRENT_STEP, PagedStep
from pagefleet_runtime.models.linears import LinearPacker

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class _Family:
    """What the layers of a class do beside llama's."""

    window: Callable[[Any], int | None] = lambda attention: None
    softcap: Callable[[Any], float | None] = lambda attention: None
    one_centred: bool = False  # norms multiply by 1 + weight
    normed_outputs: bool = False  # attention and MLP have a norm behind them, too


_FAMILIES = {
    "LlamaDecoderLayer": _Family(),
    "MistralDecoderLayer": _Family(window=lambda attention: getattr(attention.config, "sliding_window", None)),
    "Qwen2DecoderLayer": _Family(window=lambda attention: attention.sliding_window),
    "Qwen3DecoderLayer": _Family(window=lambda attention: attention.sliding_window),
    "Gemma2DecoderLayer": _Family(
        window=lambda attention: attention.sliding_window,
        softcap=lambda attention: attention.attn_logit_softcapping,
        one_centred=True,
        normed_outputs=True,
    ),
    "Gemma3DecoderLayer": _Family(
        window=lambda attention: attention.sliding_window, one_centred=True, normed_outputs=True
    ),
}


def fuse_layers(model: Any, library: CpuLibrary, packer: LinearPacker) -> bool:
    """Replace the model's layers and last norm, if its family and the size of its heads are known; else nothing.
    Returns whether it did. The replaced layers' weights are freed one layer at a time."""
    body = model.base_model
    layers: Any = getattr(body, "layers", ())
    family = _family_of(layers, model.config)
    if family is None or any(int(layer.self_attn.head_dim) > MOST_ROTATED for layer in layers):
        return False
    for index in range(len(layers)):
        layers[index] = FusedLayer(layers[index], family, library, packer)
    body.norm = FusedNorm(body.norm, family, library)
    return True


def _family_of(layers: Sequence[Any], config: Any) -> _Family | None:
    names = {type(layer).__name__ for layer in layers}
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    if len(names) != 1 or activation not in _ACTIVATIONS:
        return None
    return _FAMILIES.get(names.pop())


class FusedNorm(torch.nn.Module):
    def __init__(self, norm: Any, family: _Family, library: CpuLibrary) -> None:
        super().__init__()
        weight = norm.weight.detach().float()
        self.weight: torch.Tensor
        self.register_buffer("weight", 1 + weight if family.one_centred else weight.clone(), persistent=False)
        self.epsilon = float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)
        self._library = library

    def rows(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the norm of x [T, N]; with a residual, x is added to it in place and the sum's norm returned."""
        return rms_norm(x, self.weight, self.epsilon, residual=residual, library=self._library)

    def residual_rows(self, residual: torch.Tensor, step: PagedStep) -> torch.Tensor:
        """Return the norm of the residual [T, N], to which what the layer before left is added in place."""
        unadded, step.unadded = step.unadded, None
        return self.rows(residual) if unadded is None else self.rows(unadded, residual)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [1, T, N]
        return self.residual_rows(x[0], CURRENT_STEP.get())[None]


class FusedLayer(torch.nn.Module):
    """One layer of a packed step. Changes its input in place: it is the residual, which nobody else reads. What its
    MLP gives is left to the next norm, which adds it on its way."""

    def __init__(self, layer: Any, family: _Family, library: CpuLibrary, packer: LinearPacker) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._library = library
        self._index = int(attention.layer_idx)
        self._window, self._softcap = family.window(attention), family.softcap(attention)
        self._scale, self._head_size = float(attention.scaling), int(attention.head_dim)
        self._query_heads = attention.q_proj.out_features // self._head_size
        self._kv_heads = attention.k_proj.out_features // self._head_size
        self.qkv = packer.join([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = packer.pack(attention.o_proj)
        self.gated = packer.join([mlp.gate_proj, mlp.up_proj], _ACTIVATIONS[_activation_name(layer)])
        self.down = packer.pack(mlp.down_proj)

        def norm(holder: Any, name: str) -> FusedNorm | None:
            return FusedNorm(getattr(holder, name), family, library) if hasattr(holder, name) else None

        self.query_norm, self.key_norm = norm(attention, "q_norm"), norm(attention, "k_norm")
        self.attention_norm = FusedNorm(layer.input_layernorm, family, library)
        before_mlp = layer.pre_feedforward_layernorm if family.normed_outputs else layer.post_attention_layernorm
        self.mlp_norm = FusedNorm(before_mlp, family, library)
        self.attention_output_norm = norm(layer, "post_attention_layernorm") if family.normed_outputs else None
        self.mlp_output_norm = norm(layer, "post_feedforward_layernorm") if family.normed_outputs else None
        self.memory = packer.layer_memory
        self._as_one_call = self._join()

    def forward(
        self,
        hidden_states: torch.Tensor,  # [1, T, N]
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **_: Any,
    ) -> torch.Tensor:
        if attention_mask is not None or position_embeddings is None:
            raise ModelRefused("a fused layer was given a mask, or no angles; it attends by position alone")
        step, residual = CURRENT_STEP.get(), hidden_states[0]
        if self._as_one_call is not None:
            step.unadded = self._run_as_one(self._as_one_call, residual, position_embeddings, step)
            return hidden_states
        attended = self._attend(self.attention_norm.residual_rows(residual, step), position_embeddings, step)
        if self.attention_output_norm is not None:
            attended = self.attention_output_norm.rows(attended)
        output = self.down(self.gated(self.mlp_norm.rows(attended, residual)))
        if self.mlp_output_norm is not None:
            output = self.mlp_output_norm.rows(output)
        step.unadded = output
        return hidden_states

    def _attend(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], step: PagedStep
    ) -> torch.Tensor:  # [T, N]
        step.count_call(self._index)
        heads = self.qkv(x).view(len(x), -1, self._head_size)
        keys_end = self._query_heads + self._kv_heads
        query = heads[:, : self._query_heads]
        rotation = Rotation(query, angles[0][0], angles[1][0], *self._head_norms())
        step.cache.write(self._index, heads[:, self._query_heads : keys_end], heads[:, keys_end:], step.slots, rotation)
        attended = paged_attention(
            query,
            *step.cache.pages(self._index),
            step.batch,
            scale=self._scale,
            window=self._window,
            softcap=self._softcap,
            scales=step.cache.scales(self._index),
            kernels=step.cache.kernels.pages,
        )
        attended_rows: torch.Tensor = self.out(attended.flatten(1))
        return attended_rows

    def _join(self) -> DecoderLayer | None:
        """Return the layer as one call, where it is the library that multiplies, too."""
        qkv, out, gate, down = (_call_of(part) for part in (self.qkv, self.out, self.gated, self.down))
        if qkv is None or out is None or gate is None or down is None or not can_attend(self._head_size):
            return None
        return DecoderLayer(
            self._library,
            LayerWeights(
                attention_norm=LayerNorm(self.attention_norm.weight, self.attention_norm.epsilon),
                mlp_norm=LayerNorm(self.mlp_norm.weight, self.mlp_norm.epsilon),
                attention_output_norm=_norm_of(self.attention_output_norm),
                mlp_output_norm=_norm_of(self.mlp_output_norm),
                head_norms=self._head_norms(),
                qkv=qkv,
                out=out,
                gate=gate,
                down=down,
            ),
            self.memory,
            num_heads=self._query_heads,
            num_kv_heads=self._kv_heads,
            head_size=self._head_size,
            scale=self._scale,
            window=self._window,
            softcap=self._softcap,
        )

    def _run_as_one(
        self,
        layer: DecoderLayer,
        residual: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        step: PagedStep,
    ) -> torch.Tensor:
        step.count_call(self._index)
        writer = step.cache.writer(self._index)
        assert isinstance(writer, PageWriter), "fused layers and their cache have the same kernels"
        return layer.run(residual, step.unadded, LayerStep(step.batch, step.slots, angles[0][0], angles[1][0], writer))

    def _head_norms(self) -> tuple[torch.Tensor | None, torch.Tensor | None, float]:
        if self.query_norm is None or self.key_norm is None:
            return None, None, 0.0
        return self.query_norm.weight, self.key_norm.weight, self.query_norm.epsilon


def _norm_of(norm: FusedNorm | None) -> LayerNorm | None:
    return None if norm is None else LayerNorm(norm.weight, norm.epsilon)


def _call_of(part: torch.nn.Module) -> LinearCall | None:
    return part.library_call() if isinstance(part, PrepackedLinear) else None


def _activation_name(layer: Any) -> str:
    config = layer.mlp.config if hasattr(layer.mlp, "config") else layer.self_attn.config
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)
