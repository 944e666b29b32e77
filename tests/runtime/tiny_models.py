"""Models of random weights, small enough for every test: one directory to serve, and a configuration of each family."""

import functools
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig

from pagefleet_kernels.choice import PLAIN, Kernels
from pagefleet_kernels.quantised_kv import Fp8Scales
from pagefleet_runtime.grammar import GrammarCompiler
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.bucketed_model import BucketedModel
from pagefleet_runtime.model_executor.executor import ModelExecutor
from pagefleet_runtime.model_executor.grammar_masks import GrammarStates
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.mask_filling import load_grammar_tokenizer
from pagefleet_runtime.model_executor.paged_model import PagedModel, StepModel
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.models.speed_up import speed_up
from pagefleet_runtime.models.weights import read_weights
from tests.runtime.tiny_tokenizer import BOS_ID, EOS_ID, PAD_ID, write_tiny_tokenizer

# What families have in common; each adds what it calls differently.
_COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_WINDOWS: dict[str, Any] = {"head_dim": 16, "sliding_window": 24, "layer_types": _ALTERNATING}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 48,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
_OPT = {"ffn_dim": 96, "word_embed_proj_dim": 64}

RIGHT_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma2": _WINDOWS | {"query_pre_attn_scalar": 16},
    "gemma3_text": _WINDOWS | {"query_pre_attn_scalar": 16},
    "gpt_oss": _WINDOWS | _EXPERTS,
    "cohere2": _WINDOWS,
    "exaone4": _WINDOWS,
    "deepseek_v3": _LATENT,
    "stablelm": {},
    "nemotron": {},
    "gpt2": _GPT2,
    "opt": _OPT,
    "mixtral": _EXPERTS,
    "phi3": {},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.2},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "starcoder2": {"sliding_window": 24},
    "glm4": {"head_dim": 16},
    "gpt_neox": {"num_key_value_heads": None},
}

# With what the refusal must name.
WRONG_FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({}, "linear_attention"),
    "jamba": ({}, "linear_attention"),
    "granitemoehybrid": ({"layer_types": ["mamba", "attention"] * 2}, "linear_attention"),
    "qwen3_next": ({}, "linear_attention"),
    "lfm2": ({"layer_types": ["conv", "full_attention"] * 2}, "conv"),
    "llama4_text": ({}, "chunked_attention"),
    "bloom": ({}, "BloomForCausalLM"),
    "mpt": ({}, "MptForCausalLM"),
    "t5": ({}, "encoder-decoder"),
}


def tiny_config(family: str, **changes: Any) -> Any:
    """Return a small configuration of the family."""
    own = RIGHT_FAMILIES[family] if family in RIGHT_FAMILIES else WRONG_FAMILIES[family][0]
    wanted = own if family == "gpt2" or family in ("mamba", "bloom", "mpt", "t5") else _COMMON | own
    return CONFIG_MAPPING[family](**(wanted | changes))


def tiny_llama_directory(path: Path, seed: int = 0, vocab_size: int | None = None, **changes: Any) -> Path:
    """Write a two-layer Llama in fp32 with its tokenizer as a Hugging Face directory, and return it.

    Weights are large enough that greedy ids vary. `vocab_size` may exceed the tokenizer's.
    """
    tokenizer_size = write_tiny_tokenizer(path)
    config = LlamaConfig(
        **_COMMON
        | {
            "vocab_size": vocab_size or tokenizer_size,
            "num_hidden_layers": 2,
            "max_position_embeddings": 512,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "dtype": "float32",
        }
        | changes
    )
    random_model(config, seed).save_pretrained(path)
    return path


def random_model(config: Any, seed: int = 0) -> Any:
    """Return a model in fp32 with weights at which greedy ids vary."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=2 / parameter.shape[1] ** 0.5)
    return model.eval()


def tiny_model(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the model of the directory with its own eager attention: the oracle."""
    return read_weights(directory, dtype)


def tiny_executor(
    directory: Path,
    num_blocks: int = 32,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    *,
    stored: torch.dtype | None = None,
    kernels: Kernels = PLAIN,
) -> ModelExecutor:
    """Return an executor on the directory's model, its pool filled with NaN. `stored` is the pool's type, if another
    than the model's. Kernels that have steps of fixed shape run decodes in buckets of up to five rows, which a CPU
    computes anew where a GPU replays its record."""
    register_attention()
    model = read_weights(directory, dtype)
    layers = observe_layers(model)
    model.set_attn_implementation(ATTENTION_NAME)
    speed_up(model, kernels)
    fp8_scales = [Fp8Scales(2.0**-5, 2.0**-5)] * len(layers)
    cache = KVCache(layers, num_blocks, block_size, stored or dtype, kernels=kernels, fp8_scales=fp8_scales)
    cache.fill(float("nan"))
    vocab_size = model.config.vocab_size
    ends = (EOS_ID,)
    compiler = functools.cache(lambda: GrammarCompiler(load_grammar_tokenizer(directory, vocab_size, ends), ends))
    paged = PagedModel(model)
    step_model: StepModel = paged
    if kernels.pages.decodes is not None:
        longest = min(num_blocks * block_size, model.config.max_position_embeddings)
        step_model = BucketedModel(paged, cache, 5, longest, lambda forward: forward)
    return ModelExecutor(step_model, cache, GrammarStates(compiler, vocab_size))
