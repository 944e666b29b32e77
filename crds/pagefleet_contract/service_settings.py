"""From a resource to what its replicas run with. Pure; the operator and `pagefleet plan` use the same function."""

from dataclasses import dataclass

from pagefleet_contract.engine import (
    Budget,
    EngineConfig,
    KVCacheSettings,
    ModelSettings,
    ParallelSettings,
    ServingSettings,
    SimulationSettings,
    Swap,
)
from pagefleet_contract.inferenceservice import CPU, InferenceServiceSpec
from pagefleet_contract.known_models import is_simulated
from pagefleet_contract.names import MOUNT_MODEL
from pagefleet_contract.unhonoured import notes_of

_CLAIM = "pvc://"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """`config` is what a replica starts with; `notes` say where it is not what the spec asks, and why."""

    config: EngineConfig
    notes: tuple[str, ...]


def claim_of(uri: str) -> tuple[str, str] | None:
    """Return (claim, path below it) of a pvc:// URI, or None where it is another."""
    if not uri.startswith(_CLAIM):
        return None
    claim, _, path = uri.removeprefix(_CLAIM).partition("/")
    return claim, path.strip("/")


def uri_in_pod(uri: str) -> str:
    """Return the URI under which a pod finds the model: that of a claim is a path below its mount."""
    claim = claim_of(uri)
    if claim is None:
        return uri
    return f"file://{MOUNT_MODEL}/{claim[1]}".rstrip("/")


def service_settings(name: str, spec: InferenceServiceSpec) -> ServiceSettings:
    """Return what the replicas of the service `name` run with."""
    model = spec.model
    config = EngineConfig(
        model=ModelSettings(
            uri=model.uri,
            revision=model.revision,
            served_name=model.served_name or name,
            max_length=model.max_length,
            dtype=model.dtype,
            quantization=model.quantization,
            kernels=model.kernels,
        ),
        kv_cache=_kv_cache(spec),
        scheduling=spec.scheduling,
        serving=ServingSettings(
            max_body_bytes=spec.serving.max_body_bytes,
            stall_limit_seconds=spec.serving.stall_limit_seconds,
            grammar_timeout_seconds=spec.serving.grammar_timeout_seconds,
            vllm_metric_names=spec.serving.vllm_metric_names,
            drain_timeout_seconds=spec.rollout.drain_timeout_seconds,
        ),
        parallel=ParallelSettings(tensor=num_ranks(spec)),
        simulation=spec.simulation or SimulationSettings(),
    )
    return ServiceSettings(config, tuple(notes_of(spec)))


def effective_routing(spec: InferenceServiceSpec) -> str:
    """Return the routing that is in force."""
    return spec.routing.mode if spec.routing.mode == "Service" else "LeastPressure"


def num_ranks(spec: InferenceServiceSpec) -> int:
    """Return how many processes compute together: one for each GPU. Cores are threads of one, and a simulated model
    only plays its accelerators."""
    accelerator = spec.accelerator
    return 1 if accelerator.resource == CPU or is_simulated(spec.model.uri) else accelerator.count


def _kv_cache(spec: InferenceServiceSpec) -> KVCacheSettings:
    asked = spec.kv_cache
    mode = "Disabled" if asked.swap.mode == "Disabled" else "Recompute"
    return KVCacheSettings.model_validate(
        {
            "block_size": asked.block_size,
            "budget": Budget.model_validate(asked.budget.model_dump()),
            "dtype": asked.dtype,
            "prefix_sharing": asked.prefix_sharing,
            "swap": Swap.model_validate({"mode": mode}),
            "watermark_percent": asked.watermark_percent,
        }
    )
