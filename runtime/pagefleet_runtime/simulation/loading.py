"""From settings to a simulated model, in the stages of a real one's loading; time passes where the settings say so."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagefleet_contract.accelerators import ACCELERATORS, Accelerator, find_accelerator
from pagefleet_contract.capacity import describe_bytes, describe_weights, dtype_bytes, workspace_bytes
from pagefleet_contract.engine import SIMULATED_SCHEME, EngineConfig, quantity_bytes
from pagefleet_contract.known_models import KnownModel, find_known_model, names_of_known_models
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.budget import LoadedSizes, MemoryPlan, plan_memory
from pagefleet_runtime.protocol import EngineInfo, LoadProgress
from pagefleet_runtime.simulation.costs import Cost, measured_costs, roofline, scaled
from pagefleet_runtime.simulation.executor import Pause, SimulatedExecutor
from pagefleet_runtime.step_cost import StepCost, StepLoad, fit_step_cost
from pagefleet_runtime.text.byte_tokenizer import TURN_END, VOCAB_SIZE

Progress = Callable[[LoadProgress], None]

_CPU_STEP_MILLISECONDS, _GPU_STEP_MILLISECONDS = 100, 50
# A server's main memory: room for a model of 70 billion parameters.
_CPU_MEMORY_BYTES = 256 * 2**30
_PROGRESS_SECONDS = 0.5
# Loads from which the scheduler's linear estimate is fitted: (decode rows, their context, prefill tokens, behind).
_PROBES = ((1, 64, 0, 0), (16, 1000, 0, 0), (64, 500, 0, 0), (0, 0, 64, 0), (0, 0, 1024, 0), (0, 0, 256, 1000))


class LoadStopped(Exception):
    """The engine was told to end while it loaded."""


@dataclass(frozen=True)
class SimulatedModel:
    executor: SimulatedExecutor
    info: EngineInfo
    step_cost: StepCost


@dataclass(frozen=True, slots=True)
class _Device:
    accelerator: Accelerator | None  # None is the CPU
    memory_bytes: int
    memory_source: str

    @property
    def name(self) -> str:
        if self.accelerator is None:
            return "CPU"
        return self.accelerator.name if self.accelerator.count == 1 else _counted(self.accelerator)


def load_simulated(config: EngineConfig, progress: Progress, pause: Pause) -> SimulatedModel:
    """Return the model that a simulated:// URI names. Raises ModelRefused, and LoadStopped where `pause` says so."""
    progress(LoadProgress("resolve", 0.0, config.model.uri))
    model = _of_dtype(_find_model(config.model.uri), config)
    device = _find_device(config)
    progress(LoadProgress("resolve", 1.0, model.name))
    _pretend_to_read(config.simulation.load_seconds, model, progress, pause)
    progress(LoadProgress("kv", 0.0))
    kv_dtype = model.dtype if config.kv_cache.dtype == "auto" else config.kv_cache.dtype
    plan = plan_memory(config, _sizes(config, model, device, kv_dtype))
    progress(LoadProgress("kv", 1.0, f"{plan.num_blocks} blocks"))
    cost = find_cost(model, device.accelerator, kv_dtype)
    info = _info(config, model, device, kv_dtype, plan, cost)
    executor = SimulatedExecutor(cost.model, config.simulation.seed, pause)
    return SimulatedModel(executor, info, _linear(cost))


def find_cost(model: KnownModel, accelerator: Accelerator | None, kv_dtype: str) -> Cost:
    """Return how long the model's steps take on an accelerator, or on the CPU that was measured."""
    if accelerator is not None:
        return Cost(
            roofline(model, accelerator, kv_dtype),
            f"an estimate from {accelerator.name}'s data sheet; nothing was measured",
        )
    measured = measured_costs()
    source = find_known_model(measured.model)
    assert source is not None, "the table was measured with a known model"
    if model.name == source.name:
        return Cost(measured.cost, f"as measured on {measured.machine}")
    return Cost(
        scaled(measured, source, model),
        f"an estimate, scaled by size from {source.name} as measured on {measured.machine}",
    )


def _find_model(uri: str) -> KnownModel:
    model = find_known_model(uri)
    if model is None:
        raise ModelRefused(
            f"model.uri is {uri!r}, but no model of that name can be simulated; "
            f"write {SIMULATED_SCHEME}NAME with one of: {names_of_known_models(uri)}"
        )
    return model


def _of_dtype(model: KnownModel, config: EngineConfig) -> KnownModel:
    dtype = model.dtype if config.model.dtype == "auto" else config.model.dtype
    return replace(model, dtype=dtype, quantization=config.model.quantization)


def _find_device(config: EngineConfig) -> _Device:
    name, memory = config.simulation.accelerator, config.simulation.memory
    accelerator = None if name is None else find_accelerator(name)
    if name is not None and accelerator is None:
        known = ", ".join(one.name for one in ACCELERATORS)
        raise ModelRefused(
            f"simulation.accelerator is {name!r}; known are {known}, and several of one kind such as 4xh100"
        )
    if memory is not None:
        return _Device(accelerator, quantity_bytes(memory), "simulation.memory")
    if accelerator is not None:
        return _Device(accelerator, accelerator.memory_bytes, f"{_counted(accelerator)} by simulation.accelerator")
    return _Device(
        None,
        _CPU_MEMORY_BYTES,
        "a simulated CPU's, since neither simulation.accelerator nor simulation.memory is given",
    )


def _counted(accelerator: Accelerator) -> str:
    return f"{accelerator.count}x{accelerator.name}"


def _pretend_to_read(seconds: float, model: KnownModel, progress: Progress, pause: Pause) -> None:
    size = describe_bytes(model.weights_bytes)
    passed = 0.0
    while passed < seconds:
        progress(LoadProgress("weights", passed / seconds, size))
        part = min(_PROGRESS_SECONDS, seconds - passed)
        if pause(part):
            raise LoadStopped
        passed += part
    progress(LoadProgress("weights", 1.0, size))


def _sizes(config: EngineConfig, model: KnownModel, device: _Device, kv_dtype: str) -> LoadedSizes:
    workspace = workspace_bytes(
        model.widths,
        batch_tokens=config.scheduling.max_batch_tokens,
        max_sequences=config.scheduling.max_sequences,
        value_bytes=dtype_bytes(model.dtype),
    )
    return LoadedSizes(
        shape=model.shape,
        kv_dtype=kv_dtype,
        weights_bytes=model.weights_bytes,
        workspace_bytes=workspace,
        memory_bytes=device.memory_bytes,
        memory_source=device.memory_source,
        model_length=model.max_length,
    )


def _info(
    config: EngineConfig, model: KnownModel, device: _Device, kv_dtype: str, plan: MemoryPlan, cost: Cost
) -> EngineInfo:
    block_size = config.kv_cache.block_size
    default_step = _CPU_STEP_MILLISECONDS if device.accelerator is None else _GPU_STEP_MILLISECONDS
    kv_bytes = describe_bytes(plan.num_blocks * plan.bytes_per_block)
    return EngineInfo(
        model_directory=config.model.uri,
        model_type=model.model_type,
        dtype=model.dtype,
        kv_dtype=kv_dtype,
        block_size=block_size,
        num_blocks=plan.num_blocks,
        bytes_per_block=plan.bytes_per_block,
        max_length_tokens=plan.max_length_tokens,
        allowed_length_tokens=plan.allowed_length_tokens,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(TURN_END.token_id,),
        step_milliseconds=config.scheduling.step_milliseconds or default_step,
        startup_table=(
            ("model", f"{config.model.uri} (simulated: its text is made up)"),
            ("device", f"{device.name} (simulated)"),
            ("step times", cost.origin),
            ("dtype", model.dtype),
            ("weights", describe_weights(model.weights_bytes, model.quantization)),
            ("KV cache", f"{kv_bytes} of {kv_dtype}, {plan.bytes_per_block // block_size} B a token"),
            ("KV blocks", f"{plan.num_blocks} of {block_size} tokens"),
            ("KV tokens", str(plan.num_blocks * block_size)),
            ("memory", f"{describe_bytes(device.memory_bytes)} ({device.memory_source})"),
            ("longest request", f"{plan.max_length_tokens} tokens"),
        ),
        quantization=model.quantization,
        notes=(
            f"the model is simulated: no weights are loaded, text is made up, a token is a byte; step times are "
            f"{cost.origin}",
            f"the memory that counts is played, too: {describe_bytes(device.memory_bytes)} ({device.memory_source}); "
            "what the machine has, and accelerator.memory of the resource, doesn't count",
            *plan.notes,
        ),
    )


def _linear(cost: Cost) -> StepCost:
    """Return the scheduler's estimate: the measured model itself, or a fit to the roofline's times."""
    if isinstance(cost.model, StepCost):
        return cost.model
    loads = [
        StepLoad(rows, rows * context, chunk, chunk * behind + chunk * (chunk + 1) // 2)
        for rows, context, chunk, behind in _PROBES
    ]
    return fit_step_cost([(load, cost.model.seconds(load)) for load in loads])
