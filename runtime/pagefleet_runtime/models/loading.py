"""From settings to an executor that is proven and measured: the steps of loading, in order."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pagefleet_contract.capacity import LayerShape, ModelShape, describe_bytes, workspace_bytes
from pagefleet_contract.engine import EngineConfig
from pagefleet_kernels.choice import PLAIN, Kernels, choose_kernels
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.grammar import GrammarCompiler
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.executor import ModelExecutor
from pagefleet_runtime.model_executor.grammar_masks import GrammarStates
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.mask_filling import load_grammar_tokenizer
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.budget import LoadedSizes, MemoryPlan, plan_memory
from pagefleet_runtime.models.cache import cache_directory
from pagefleet_runtime.models.device import Device, choose_device
from pagefleet_runtime.models.dtypes import Dtypes, choose_dtypes
from pagefleet_runtime.models.gate import eager_logits, prove_structure
from pagefleet_runtime.models.gguf import convert_gguf
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.models.machine import Machine, read_machine
from pagefleet_runtime.models.sources import GgufFile, ModelSource, resolve_source
from pagefleet_runtime.models.speed_up import speed_up
from pagefleet_runtime.models.warmup import measure_steps
from pagefleet_runtime.models.weights import end_token_ids, read_config, read_weights, weights_bytes
from pagefleet_runtime.models.weights_gate import gate_sequences, prove_paged_weights
from pagefleet_runtime.protocol import EngineInfo, LoadProgress
from pagefleet_runtime.step_cost import StepCost, fit_step_cost

_log = logging.getLogger(__name__)

# Where no budget is fixed, the scheduler may find that this many tokens fit into a step.
_STEP_TOKENS = 2048

Progress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class LoadedModel:
    executor: ModelExecutor
    info: EngineInfo
    step_cost: StepCost


@dataclass(frozen=True)
class _Proven:
    """A model on our attention, with what was learnt of it."""

    paged: PagedModel
    layers: tuple[LayerShape, ...]
    kernels: Kernels
    kernels_description: str
    notes: tuple[str, ...]


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """Return the model that the settings name, ready to run plans. `progress` is told of each stage's beginning and
    end. Raises ModelRefused."""
    machine = read_machine()
    device = choose_device(machine)
    torch.set_num_threads(machine.num_threads)
    register_attention()
    folder = cache_directory()
    progress(LoadProgress("resolve", 0.0, config.model.uri))
    source = resolve_source(
        config.model, folder, lambda share, detail: progress(LoadProgress("resolve", share, detail))
    )
    progress(LoadProgress("resolve", 1.0, str(source.path)))
    directory = _converted(source, folder, progress)
    hf_config = read_config(directory)
    dtypes = choose_dtypes(config, _own_dtype(source, hf_config), device.has_bfloat16, device.is_cpu)
    progress(LoadProgress("weights", 0.0, dtypes.weights))
    model = read_weights(directory, getattr(torch, dtypes.weights)).to(device.torch_device)
    progress(LoadProgress("weights", 1.0, describe_bytes(weights_bytes(model))))
    mode = config.model.kernels if device.is_cpu else "plain"
    kernels = choose_kernels(mode, getattr(torch, dtypes.weights), folder / "kernels")
    proven = _prove(model, hf_config, directory, dtypes, config, kernels, progress)
    return _assemble(proven, config, directory, dtypes, machine, device, progress)


def _converted(source: ModelSource, folder: Path, progress: Progress) -> Path:
    if not isinstance(source, GgufFile):
        return source.path
    progress(LoadProgress("convert", 0.0, source.path.name))
    directory = convert_gguf(source.path, folder)
    progress(LoadProgress("convert", 1.0, str(directory)))
    return directory


def _own_dtype(source: ModelSource, hf_config: Any) -> str | None:
    """Return the dtype that the model was stored in; a quantised file has none that counts."""
    if isinstance(source, GgufFile):
        return None
    return str(hf_config.dtype or torch.float32).removeprefix("torch.")


def _prove(
    model: Any,
    hf_config: Any,
    directory: Path,
    dtypes: Dtypes,
    config: EngineConfig,
    kernels: Kernels,
    progress: Progress,
) -> _Proven:
    """Pass both parts of the equality gate; the model is left on our attention, sped up for the kernels."""
    progress(LoadProgress("gate", 0.0, "structure"))
    kernels = _proven_kernels(hf_config, kernels)
    progress(LoadProgress("gate", 0.5, "weights"))
    sequences = gate_sequences(directory, model.config)
    eager = [eager_logits(model, ids) for ids in sequences]
    layers = observe_layers(model)
    model.set_attn_implementation(ATTENTION_NAME)
    done = speed_up(model, kernels)
    paged = PagedModel(model)
    figures = prove_paged_weights(
        paged, layers, sequences, eager, getattr(torch, dtypes.kv), config.kv_cache.block_size, kernels
    )
    _log.info("paged attention equals the model's own: %s", figures)
    progress(LoadProgress("gate", 1.0, figures))
    return _Proven(paged, layers, kernels, ", ".join((kernels.description, *done)), dtypes.notes + kernels.notes)


def _proven_kernels(hf_config: Any, kernels: Kernels) -> Kernels:
    """Return the kernels if the structure is proven with them, or plain ones with a note that says why."""
    try:
        prove_structure(hf_config, kernels=kernels)
    except ModelRefused as refusal:
        if kernels == PLAIN:
            raise
        prove_structure(hf_config)
        return Kernels(notes=(f"kernels are plain PyTorch, many times slower at decoding: {refusal}",))
    return kernels


def _assemble(
    proven: _Proven,
    config: EngineConfig,
    directory: Path,
    dtypes: Dtypes,
    machine: Machine,
    device: Device,
    progress: Progress,
) -> LoadedModel:
    model = proven.paged.model
    progress(LoadProgress("kv", 0.0))
    sizes = _sizes(proven, config, dtypes, device)
    plan = plan_memory(config, sizes)
    cache_ = KVCache(
        proven.layers,
        plan.num_blocks,
        config.kv_cache.block_size,
        getattr(torch, dtypes.kv),
        device.torch_device,
        proven.kernels,
    )
    progress(LoadProgress("kv", 1.0, f"{plan.num_blocks} blocks"))
    vocab_size, ends = int(model.config.vocab_size), end_token_ids(model)
    # The tokenizer's trie takes a while to build, and most servers never see a grammar.
    compiler = cache(lambda: GrammarCompiler(load_grammar_tokenizer(directory, vocab_size, ends), ends))
    executor = ModelExecutor(proven.paged, cache_, GrammarStates(compiler, vocab_size))
    progress(LoadProgress("warmup", 0.0))
    step_cost = fit_step_cost(measure_steps(executor, plan.max_length_tokens))
    progress(LoadProgress("warmup", 1.0))
    info = EngineInfo(
        model_directory=str(directory),
        model_type=str(model.config.model_type),
        dtype=dtypes.weights,
        kv_dtype=dtypes.kv,
        block_size=config.kv_cache.block_size,
        num_blocks=plan.num_blocks,
        bytes_per_block=plan.bytes_per_block,
        max_length_tokens=plan.max_length_tokens,
        vocab_size=vocab_size,
        eos_token_ids=ends,
        step_milliseconds=config.scheduling.step_milliseconds or device.step_milliseconds,
        startup_table=(
            *_startup_table(config, sizes, plan, dtypes, machine),
            ("device", device.name),
            ("kernels", proven.kernels_description),
            ("KV pages", cache_.why_no_huge_pages or "2 MiB where the system gives them"),
        ),
        notes=proven.notes + plan.notes,
    )
    return LoadedModel(executor, info, step_cost)


def _sizes(proven: _Proven, config: EngineConfig, dtypes: Dtypes, device: Device) -> LoadedSizes:
    hf_config = proven.paged.model.config
    hidden_size = int(hf_config.hidden_size)
    workspace = workspace_bytes(
        vocab_size=int(hf_config.vocab_size),
        hidden_size=hidden_size,
        intermediate_size=_widest(getattr(hf_config, "intermediate_size", None), 4 * hidden_size),
        step_tokens=config.scheduling.max_batch_tokens or _STEP_TOKENS,
        max_sequences=config.scheduling.max_sequences,
        value_bytes=getattr(torch, dtypes.weights).itemsize,
    )
    own_length = getattr(hf_config, "max_position_embeddings", None)
    return LoadedSizes(
        shape=ModelShape(proven.layers),
        kv_dtype=dtypes.kv,
        weights_bytes=weights_bytes(proven.paged.model),
        workspace_bytes=workspace,
        memory_bytes=device.memory_bytes,
        memory_source=device.memory_source,
        model_length=int(own_length) if own_length else None,
    )


def _widest(size: int | Sequence[int] | None, fallback: int) -> int:
    """Some models have a feed-forward width per layer."""
    if size is None:
        return fallback
    return size if isinstance(size, int) else max(size)


def _startup_table(
    config: EngineConfig, sizes: LoadedSizes, plan: MemoryPlan, dtypes: Dtypes, machine: Machine
) -> tuple[tuple[str, str], ...]:
    block_size = config.kv_cache.block_size
    per_token = plan.bytes_per_block // block_size
    return (
        ("model", config.model.uri),
        ("dtype", dtypes.weights),
        ("weights", describe_bytes(sizes.weights_bytes)),
        ("KV cache", f"{describe_bytes(plan.num_blocks * plan.bytes_per_block)} of {dtypes.kv}, {per_token} B a token"),
        ("KV blocks", f"{plan.num_blocks} of {block_size} tokens"),
        ("KV tokens", str(plan.num_blocks * block_size)),
        ("workspace", f"{describe_bytes(sizes.workspace_bytes)} (estimate)"),
        ("memory", f"{describe_bytes(sizes.memory_bytes)} ({sizes.memory_source})"),
        ("longest request", f"{plan.max_length_tokens} tokens"),
        ("threads", str(machine.num_threads)),
    )
