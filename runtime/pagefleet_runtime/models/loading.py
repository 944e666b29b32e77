"""From settings to an executor that is proven and measured: the steps of loading, in order."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pagefleet_contract.capacity import (
    LayerShape,
    ModelShape,
    ModelWidths,
    describe_bytes,
    describe_weights,
    workspace_bytes,
)
from pagefleet_contract.engine import EngineConfig
from pagefleet_kernels.choice import Kernels
from pagefleet_kernels.quantised_kv import Fp8Scales
from pagefleet_runtime.grammar import GrammarCompiler
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.executor import ModelExecutor
from pagefleet_runtime.model_executor.grammar_masks import GrammarStates
from pagefleet_runtime.model_executor.kv_cache import KVCache, stored_dtype
from pagefleet_runtime.model_executor.mask_filling import load_grammar_tokenizer
from pagefleet_runtime.model_executor.paged_model import PagedModel, StepModel
from pagefleet_runtime.model_executor.tensor_parallel import RankModel, TensorParallelExecutor
from pagefleet_runtime.models.budget import LoadedSizes, MemoryPlan, plan_memory, process_bytes
from pagefleet_runtime.models.cache import cache_directory
from pagefleet_runtime.models.decode_graphs import DecodeGraphs, with_decode_graphs
from pagefleet_runtime.models.device import Device, choose_device
from pagefleet_runtime.models.dtypes import Dtypes, choose_dtypes
from pagefleet_runtime.models.gate import eager_logits
from pagefleet_runtime.models.gguf import convert_gguf
from pagefleet_runtime.models.kernels import kernels_for, plain_notes, proven_kernels, uncoded_notes
from pagefleet_runtime.models.layer_shapes import observe_attention
from pagefleet_runtime.models.machine import Machine, held_by_rank, read_machine
from pagefleet_runtime.models.paths import GgufFile, ModelSource
from pagefleet_runtime.models.ranks import Alone, Lost, Member, Ranks, RankTask, Workers, end_process
from pagefleet_runtime.models.sharding import check_divides
from pagefleet_runtime.models.sources import resolve_source
from pagefleet_runtime.models.speed_up import speed_up
from pagefleet_runtime.models.warmup import clear_for_steps, measure_steps
from pagefleet_runtime.models.weights import (
    end_token_ids,
    mapped_bytes,
    read_config,
    read_weights,
    weights_bytes,
)
from pagefleet_runtime.models.weights_gate import gate_sequences, measure_fp8_scales, prove_paged_weights
from pagefleet_runtime.protocol import EngineInfo, LoadProgress
from pagefleet_runtime.step_cost import StepCost, fit_step_cost

_log = logging.getLogger(__name__)


Progress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class LoadedModel:
    executor: ModelExecutor | TensorParallelExecutor
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
    fp8_scales: tuple[Fp8Scales, ...] = ()


@dataclass(frozen=True)
class _Share:
    """What a rank holds of the model, in its memory; where there is one rank, all."""

    proven: _Proven
    sizes: LoadedSizes
    plan: MemoryPlan
    graphs: DecodeGraphs
    executor: ModelExecutor


def load_model(config: EngineConfig, progress: Progress, lost: Lost = end_process) -> LoadedModel:
    """Return the model that the settings name, ready to run plans. `progress` is told of each stage's beginning and
    end; `lost` is called, from any thread and at any time, where one of several ranks is gone. Raises ModelRefused."""
    machine = read_machine().share(config.parallel.tensor).giving_back(held_by_rank(0))
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
    check_divides(hf_config, config.parallel.tensor)
    dtypes = choose_dtypes(config, _own_dtype(source, hf_config), device.has_bfloat16, device.is_cpu)
    ranks = Alone() if config.parallel.tensor == 1 else Workers(config, directory, dtypes, lost)
    kernels = kernels_for(config, dtypes, device)
    share = _load_share(config, directory, dtypes, device, kernels, ranks, progress)
    executor = TensorParallelExecutor(share.executor, ranks) if isinstance(ranks, Workers) else share.executor
    return _loaded(share, executor, config, directory, dtypes, machine, device, progress)


def load_rank(task: RankTask, member: Member) -> ModelExecutor:
    """Return another rank's executor, ready to run what rank 0 tells it. Raises ModelRefused."""
    machine = read_machine().share(task.size).giving_back(held_by_rank(task.rank))
    device = choose_device(machine, task.rank)
    torch.set_num_threads(machine.num_threads)
    register_attention()
    kernels = kernels_for(task.config, task.dtypes, device)
    share = _load_share(task.config, task.directory, task.dtypes, device, kernels, member, lambda progress: None)
    return share.executor


def _load_share(
    config: EngineConfig,
    directory: Path,
    dtypes: Dtypes,
    device: Device,
    kernels: Kernels,
    ranks: Ranks,
    progress: Progress,
) -> _Share:
    """Read this rank's weights, prove them and make their KV cache; all ranks do so at the same time."""
    hf_config = read_config(directory)
    progress(LoadProgress("weights", 0.0, dtypes.weights))
    ranks.meet(device.torch_device)
    model = read_weights(directory, getattr(torch, dtypes.weights), ranks.size).to(device.torch_device)
    progress(LoadProgress("weights", 1.0, describe_bytes(weights_bytes(model))))
    ranks.least(0)  # reading takes ranks unequally long, and from here on they wait for one another in every layer
    proven = _prove(model, hf_config, directory, dtypes, config, kernels, ranks, progress)
    progress(LoadProgress("kv", 0.0))
    sizes = _sizes(proven, config, dtypes, device, ranks)
    plan = plan_memory(config, sizes)
    plan = plan.cut(ranks.least(plan.num_blocks), config.kv_cache.block_size)
    cache_ = KVCache(
        proven.layers,
        plan.num_blocks,
        config.kv_cache.block_size,
        stored_dtype(dtypes.kv),
        device.torch_device,
        proven.kernels,
        proven.fp8_scales,
    )
    clear_for_steps(cache_, plan.max_length_tokens)
    progress(LoadProgress("kv", 1.0, f"{plan.num_blocks} blocks"))
    max_sequences = config.scheduling.max_sequences
    graphs = with_decode_graphs(proven.paged, cache_, max_sequences, plan.max_length_tokens, ranks.size)
    return _Share(proven, sizes, plan, graphs, _executor(graphs.model, proven.paged.model, cache_, directory))


def _executor(step_model: StepModel, model: Any, cache_: KVCache, directory: Path) -> ModelExecutor:
    vocab_size, ends = int(model.config.vocab_size), end_token_ids(model)
    # The tokenizer's trie takes a while to build, and most servers never see a grammar.
    compiler = cache(lambda: GrammarCompiler(load_grammar_tokenizer(directory, vocab_size, ends), ends))
    return ModelExecutor(step_model, cache_, GrammarStates(compiler, vocab_size))


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
    ranks: Ranks,
    progress: Progress,
) -> _Proven:
    """Pass both parts of the equality gate; the model is left on our attention, sped up for the kernels."""
    progress(LoadProgress("gate", 0.0, "structure"))
    kernels = proven_kernels(hf_config, kernels, ranks, model.device)
    progress(LoadProgress("gate", 0.5, "weights"))
    sequences = gate_sequences(directory, model.config)
    eager = [eager_logits(model, ids) for ids in sequences]
    attention_layers = observe_attention(model)
    layers = tuple(layer.stored for layer in attention_layers)
    model.set_attn_implementation(ATTENTION_NAME)
    done = speed_up(model, kernels)
    paged = PagedModel(model) if ranks.size == 1 else RankModel(model, ranks.fail)
    block_size, scales = config.kv_cache.block_size, tuple[Fp8Scales, ...]()
    if dtypes.kv == "fp8":
        scales = tuple(measure_fp8_scales(paged, layers, sequences, block_size, kernels))
    figures = prove_paged_weights(paged, layers, sequences, eager, stored_dtype(dtypes.kv), block_size, kernels, scales)
    _log.info("paged attention equals the model's own: %s", figures)
    progress(LoadProgress("gate", 1.0, figures))
    notes = (
        *dtypes.notes,
        *kernels.notes,
        *plain_notes(attention_layers, paged.dtype, stored_dtype(dtypes.kv), kernels.pages),
        *uncoded_notes(model, kernels, dtypes),
    )
    return _Proven(paged, layers, kernels, ", ".join((kernels.description, *done)), notes, scales)


def _loaded(
    share: _Share,
    executor: ModelExecutor | TensorParallelExecutor,
    config: EngineConfig,
    directory: Path,
    dtypes: Dtypes,
    machine: Machine,
    device: Device,
    progress: Progress,
) -> LoadedModel:
    model, sizes, plan = share.proven.paged.model, share.sizes, share.plan
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
        bytes_per_block=plan.bytes_per_block * sizes.num_ranks,
        max_length_tokens=plan.max_length_tokens,
        allowed_length_tokens=plan.allowed_length_tokens,
        vocab_size=int(model.config.vocab_size),
        eos_token_ids=end_token_ids(model),
        step_milliseconds=config.scheduling.step_milliseconds or device.step_milliseconds,
        startup_table=(
            *_startup_table(config, share, dtypes, machine),
            ("device", device.name),
            ("kernels", ", ".join((share.proven.kernels_description, *share.graphs.description))),
            ("KV pages", executor.cache.why_no_huge_pages or "2 MiB where the system gives them"),
        ),
        quantization=share.proven.kernels.quantization,
        notes=share.proven.notes + plan.notes + share.graphs.notes,
    )
    return LoadedModel(executor, info, step_cost)


def _sizes(proven: _Proven, config: EngineConfig, dtypes: Dtypes, device: Device, ranks: Ranks) -> LoadedSizes:
    hf_config = proven.paged.model.config
    hidden_size = int(hf_config.hidden_size)
    workspace = workspace_bytes(
        ModelWidths(
            int(hf_config.vocab_size),
            hidden_size,
            _widest(getattr(hf_config, "intermediate_size", None), 4 * hidden_size),
        ),
        batch_tokens=config.scheduling.max_batch_tokens,
        max_sequences=config.scheduling.max_sequences,
        value_bytes=getattr(torch, dtypes.weights).itemsize,
    )
    own_length = getattr(hf_config, "max_position_embeddings", None)
    model = proven.paged.model
    weights = weights_bytes(model)
    held_weights = weights - mapped_bytes(model)
    return LoadedSizes(
        shape=ModelShape(proven.layers),
        kv_dtype=dtypes.kv,
        weights_bytes=weights,
        workspace_bytes=workspace,
        memory_bytes=device.memory_bytes,
        memory_source=device.memory_source,
        model_length=int(own_length) if own_length else None,
        num_ranks=ranks.size,
        process_bytes=process_bytes(ranks.rank, held_by_rank(ranks.rank), held_weights) if device.is_cpu else 0,
    )


def _widest(size: int | Sequence[int] | None, fallback: int) -> int:
    """Some models have a feed-forward width per layer."""
    if size is None:
        return fallback
    return size if isinstance(size, int) else max(size)


def _startup_table(
    config: EngineConfig, share: _Share, dtypes: Dtypes, machine: Machine
) -> tuple[tuple[str, str], ...]:
    sizes, plan = share.sizes, share.plan
    block_size = config.kv_cache.block_size
    block_bytes = plan.bytes_per_block * sizes.num_ranks
    per_token = block_bytes // block_size
    processes = (("processes", describe_bytes(sizes.process_bytes)),) if sizes.process_bytes else ()
    ranks = () if sizes.num_ranks == 1 else (("ranks", f"{sizes.num_ranks}; weights and memory are one's"),)
    return (
        ("model", config.model.uri),
        ("dtype", dtypes.weights),
        ("weights", describe_weights(sizes.weights_bytes, share.proven.kernels.quantization)),
        ("KV cache", f"{describe_bytes(plan.num_blocks * block_bytes)} of {dtypes.kv}, {per_token} B a token"),
        ("KV blocks", f"{plan.num_blocks} of {block_size} tokens"),
        ("KV tokens", str(plan.num_blocks * block_size)),
        ("workspace", f"{describe_bytes(sizes.workspace_bytes)} (estimate)"),
        *processes,
        ("memory", f"{describe_bytes(sizes.memory_bytes)} ({sizes.memory_source})"),
        ("longest request", f"{plan.max_length_tokens} tokens"),
        ("threads", str(machine.num_threads)),
        *ranks,
    )
