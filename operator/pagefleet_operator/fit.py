"""Whether the model fits a replica, decided before any pod exists, with the bytes in the message.

False only where no replica could ever start: a doubt lets the pods try, and their report decides.
"""

from dataclasses import dataclass
from typing import Literal

from pagefleet_contract.accelerators import find_accelerator
from pagefleet_contract.capacity import (
    ModelShape,
    blocks_in,
    bytes_per_block,
    describe_bytes,
    dtype_bytes,
    idle_process_bytes,
    scratch_bytes,
    sequences_in,
    weight_bytes,
    workspace_bytes,
)
from pagefleet_contract.engine import EngineConfig, quantity_bytes
from pagefleet_contract.inferenceservice import CPU, InferenceServiceSpec
from pagefleet_contract.known_models import find_known_model, is_simulated, names_of_known_models
from pagefleet_operator.observed import ModelFacts

# What most models have. None stores less a value, so that False is certain.
_AUTO_DTYPE = "bfloat16"
_POD_LIMIT = "podTemplate.resources.limits.memory"


@dataclass(frozen=True, slots=True)
class Fit:
    """The condition ModelFits. Where `status` is False there shall be no pods."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Sizes:
    shape: ModelShape
    weights_bytes: int
    workspace_bytes: int  # 0 where the model's widths aren't known
    process_bytes: int  # 0 where the memory isn't the processes', but an accelerator's
    kv_dtype: str
    max_length: int | None
    memory_bytes: int
    memory_words: str
    source: str
    num_ranks: int  # accelerators that share weights and heads; sizes are one's

    @property
    def fixed_bytes(self) -> int:
        """What is taken before the first block."""
        return self.weights_bytes + self.workspace_bytes + self.process_bytes

    @property
    def fixed_words(self) -> str:
        parts = ((self.workspace_bytes, "of workspace"), (self.process_bytes, "of the processes themselves"))
        words = [f"{describe_bytes(size)} {what}" for size, what in parts if size]
        return " and ".join([f"{describe_bytes(self.weights_bytes)} of weights", *words])


def judge_fit(spec: InferenceServiceSpec, config: EngineConfig, model: ModelFacts, *, proven: bool) -> Fit:
    """Return whether the model fits. `proven`: a replica of this generation has made its KV blocks."""
    refused = _unknown_simulation(spec) or _parallelism_fault(_accelerators(spec, config), model)
    if refused is not None:
        return refused
    reckoned = _reckon(spec, config, model)
    if reckoned.status != "True" and proven:
        return Fit("True", "ReplicaRuns", "a replica of this generation has loaded it; status.kv has its figures")
    return reckoned


def _reckon(spec: InferenceServiceSpec, config: EngineConfig, model: ModelFacts) -> Fit:
    if model.shape is None or model.weights_bytes is None:
        why = model.fault or f"nothing is known about {spec.model.uri} before a replica has loaded it"
        return Fit("Unknown", "ModelUnknown", f"{why}; the first replica will tell")
    memory = _memory(spec, config)
    if memory is None:
        return Fit("Unknown", "MemoryUnknown", f"{_how_to_tell_memory(spec)}; the first replica will tell")
    num_ranks = config.parallel.tensor
    sizes = _Sizes(
        model.shape.share(num_ranks),
        _weights_bytes(model, model.weights_bytes, config) // num_ranks,
        _workspace_bytes(model, config),
        _process_bytes(spec),
        _kv_dtype(model, config),
        _length(model, config),
        *memory,
        model.source,
        num_ranks,
    )
    return _judge(config, sizes)


def _unknown_simulation(spec: InferenceServiceSpec) -> Fit | None:
    if not is_simulated(spec.model.uri) or find_known_model(spec.model.uri) is not None:
        return None
    uri = spec.model.uri
    told = f"no model of {uri}'s name can be simulated; known are {names_of_known_models(uri)}"
    return Fit("False", "ModelUnknown", told)


def _accelerators(spec: InferenceServiceSpec, config: EngineConfig) -> int:
    """Return how many accelerators divide the heads; what is only played would be divided by as many."""
    played = is_simulated(spec.model.uri) and spec.accelerator.resource != CPU
    return spec.accelerator.count if played else config.parallel.tensor


def _parallelism_fault(num_ranks: int, model: ModelFacts) -> Fit | None:
    if model.shape is None or model.shape.can_be_shared_by(num_ranks):
        return None
    heads = min(layer.num_kv_heads for layer in model.shape.layers)
    possible = [str(n) for n in range(1, heads + 1) if model.shape.can_be_shared_by(n)]
    return Fit(
        "False",
        "ParallelismUnsupported",
        f"accelerator.count is {num_ranks}, but the model has {heads} key-value heads, which can't be divided by it;"
        f" set accelerator.count to {' or '.join(possible)}",
    )


def _memory(spec: InferenceServiceSpec, config: EngineConfig) -> tuple[int, str] | None:
    """Return the bytes that a replica's device has, and what says so."""
    accelerator = spec.accelerator
    if is_simulated(spec.model.uri):
        played = config.simulation
        if played.memory is not None:
            return quantity_bytes(played.memory), "simulation.memory"
        known = None if played.accelerator is None else find_accelerator(played.accelerator)
        return None if known is None else (known.memory_bytes, f"simulation.accelerator {played.accelerator}")
    limit = _pod_limit(spec)
    if limit is not None:
        try:
            return quantity_bytes(limit), _POD_LIMIT
        except ValueError:
            return None  # Kubernetes knows more ways to write a number
    if accelerator.memory is None:
        return None
    return quantity_bytes(accelerator.memory), "accelerator.memory"


def _pod_limit(spec: InferenceServiceSpec) -> str | None:
    """Return what a replica on a CPU gets whatever `accelerator.memory` says."""
    return spec.pod_template.resources.limits.get("memory") if spec.accelerator.resource == CPU else None


def _how_to_tell_memory(spec: InferenceServiceSpec) -> str:
    if is_simulated(spec.model.uri):
        return "neither simulation.memory nor a known simulation.accelerator says how much memory is played"
    limit = _pod_limit(spec)
    if limit is not None:
        return f"{_POD_LIMIT} is {limit}, which isn't reckoned with here"
    if spec.accelerator.resource == CPU:
        return "accelerator.memory is absent, so a replica takes what its node has"
    return f"accelerator.memory is absent, so nothing says how much memory one {spec.accelerator.resource} has"


def _dtype(model: ModelFacts, config: EngineConfig) -> str:
    return (model.dtype or _AUTO_DTYPE) if config.model.dtype == "auto" else config.model.dtype


def _weights_bytes(model: ModelFacts, own_bytes: int, config: EngineConfig) -> int:
    own = dtype_bytes(model.dtype or _AUTO_DTYPE)
    # Of a quantised model this is less than it takes: embeddings keep their type.
    return own_bytes * weight_bytes(_dtype(model, config), config.model.quantization) // own


def _workspace_bytes(model: ModelFacts, config: EngineConfig) -> int:
    """Return what a replica sets aside for a step, as it reckons it itself."""
    if model.widths is None:
        return 0
    scheduling = config.scheduling
    return workspace_bytes(
        model.widths,
        batch_tokens=scheduling.max_batch_tokens,
        max_sequences=scheduling.max_sequences,
        value_bytes=dtype_bytes(_dtype(model, config)),
    )


def _process_bytes(spec: InferenceServiceSpec) -> int:
    """Return what server and engine hold of a CPU replica's memory. What is played has memory of its own."""
    on_its_memory = spec.accelerator.resource == CPU and not is_simulated(spec.model.uri)
    return idle_process_bytes(2) if on_its_memory else 0


def _kv_dtype(model: ModelFacts, config: EngineConfig) -> str:
    asked = (config.kv_cache.dtype, config.model.dtype)
    return next((dtype for dtype in asked if dtype != "auto"), model.dtype or _AUTO_DTYPE)


def _length(model: ModelFacts, config: EngineConfig) -> int | None:
    known = [length for length in (config.model.max_length, model.max_length_tokens) if length is not None]
    return min(known) if known else None


def _judge(config: EngineConfig, sizes: _Sizes) -> Fit:
    budget = config.kv_cache.budget
    block_bytes = bytes_per_block(sizes.shape, sizes.kv_dtype, config.kv_cache.block_size)
    if budget.percent is not None:
        share = sizes.memory_bytes * budget.percent // 100
        with_scratch = block_bytes + scratch_bytes(sizes.shape, block_bytes)
        fits = blocks_in(share - sizes.fixed_bytes, with_scratch)
        return _fits(config, sizes, fits, block_bytes) if fits else _no_room(config, sizes, with_scratch, share)
    blocks = (
        budget.blocks
        if budget.blocks is not None
        else blocks_in(quantity_bytes(budget.memory or "0"), block_bytes * sizes.num_ranks)
    )
    if blocks == 0:
        block = describe_bytes(block_bytes * sizes.num_ranks)
        told = f"kvCache.budget.memory is {budget.memory}; give {block}, one block, or more"
        return Fit("False", "BudgetTooSmall", told)
    if sizes.fixed_bytes + blocks * block_bytes > sizes.memory_bytes:
        return _budget_too_large(sizes, blocks, block_bytes)
    return _fits(config, sizes, blocks, block_bytes)


def _fits(config: EngineConfig, sizes: _Sizes, blocks: int, block_bytes: int) -> Fit:
    block_size = config.kv_cache.block_size
    tokens = blocks * block_size
    told = (
        f"beside {sizes.fixed_words} {_memory_words(sizes)} hold at most {blocks}"
        f" KV blocks of {describe_bytes(block_bytes)}, {tokens} tokens"
    )
    if sizes.max_length is not None:
        length = min(sizes.max_length, tokens)
        told += f", {sequences_in(blocks, length, block_size)} sequences of {length}"
    return Fit("True", "Fits", f"{told}; sizes from {sizes.source}")


def _no_room(config: EngineConfig, sizes: _Sizes, block_bytes: int, share: int) -> Fit:
    percent = config.kv_cache.budget.percent
    assert percent is not None, "the caller looked"
    least_bytes = sizes.fixed_bytes + block_bytes
    needed = -(-least_bytes * 100 // percent)
    told = (
        f"{sizes.fixed_words} and {describe_bytes(block_bytes)} for one KV block are {describe_bytes(least_bytes)};"
        f" {percent} % of {_memory_words(sizes)} are {describe_bytes(share)}."
        f" It would fit in {_whole_gibibytes(needed)} of memory"
    )
    if least_bytes <= sizes.memory_bytes:
        least = -(-least_bytes * 100 // sizes.memory_bytes)
        told += f", or with kvCache.budget.memoryPercent {least} or more"
    elif config.model.dtype == "float32":
        told += ", with model.dtype bfloat16 in about half of that"
    return Fit("False", "DoesNotFit", f"{told}; sizes from {sizes.source}")


def _budget_too_large(sizes: _Sizes, blocks: int, block_bytes: int) -> Fit:
    most = blocks_in(sizes.memory_bytes - sizes.fixed_bytes, block_bytes)
    asked = f"{blocks} KV blocks take {describe_bytes(blocks * block_bytes)}"
    told = f"{asked} beside {sizes.fixed_words}, more than {_memory_words(sizes)}."
    if most:
        told += f" At most {most} blocks ({describe_bytes(most * block_bytes)}) would fit"
    else:
        told += f" It would fit in {_whole_gibibytes(sizes.fixed_bytes + blocks * block_bytes)} of memory"
    return Fit("False", "DoesNotFit", f"{told}; sizes from {sizes.source}")


def _memory_words(sizes: _Sizes) -> str:
    shared = "" if sizes.num_ranks == 1 else f", of each of {sizes.num_ranks}, which share the model"
    return f"{describe_bytes(sizes.memory_bytes)} ({sizes.memory_words}{shared})"


def _whole_gibibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**30)}Gi"
