"""What the operator sees of one service, as one frozen value. `observe` builds it; planning reads nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagefleet_contract.capacity import ModelShape, ModelWidths
from pagefleet_contract.inferenceservice import InferenceServiceSpec

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Service:
    """The resource. `spec` is None where it can't be parsed, and `refusal` says why in one line."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    spec: InferenceServiceSpec | None
    refusal: str = ""
    status: Manifest = field(default_factory=dict)  # as it is in the cluster


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod doesn't come up: a CamelCase reason and what the cluster says about it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What a replica's state page says. Absent values are None."""

    state: str  # loading, ready, draining, failed
    in_flight: int
    load_stage: str | None
    load_fraction: float | None
    block_size: int | None
    num_blocks: int | None
    bytes_per_block: int | None
    max_length_tokens: int | None
    dtype: str | None
    quantization: str | None
    kv_dtype: str | None
    live_blocks: int | None
    notes: tuple[str, ...]
    policy: Mapping[str, int]  # live values in force, by their names in the policy (snake_case)


@dataclass(frozen=True, slots=True)
class Pod:
    """One engine or router pod."""

    name: str
    uid: str
    component: str
    ip: str | None
    template_hash: str | None
    created_seconds: float
    scheduled: bool
    ready: bool
    deleting: bool
    restarts: int
    trouble: Trouble | None  # None where nothing is wrong, or not yet
    deletion_cost: int | None
    figures: Figures | None = None  # None where they weren't read
    figures_fault: str = ""  # why not
    finished: bool = False  # Succeeded or Failed: it never runs again, and its Deployment doesn't count it
    requests: Mapping[str, str] = field(default_factory=dict)  # of all its containers; empty where it isn't known


@dataclass(frozen=True, slots=True)
class OptionalApis:
    """Which APIs, that not every cluster has, are there."""

    pod_monitors: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known about the model before any pod runs."""

    shape: ModelShape | None = None
    weights_bytes: int | None = None
    max_length_tokens: int | None = None
    source: str = ""  # where from: config.json of the hub, the list of well-known models, a replica's report
    fault: str = ""  # why nothing is known
    dtype: str | None = None  # of the weights, as stored: bfloat16, float16 or float32
    widths: ModelWidths | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that `plan` looks at beside settings and time."""

    service: Service
    # Live manifests of the service's children by (kind, name); only those it owns (owner reference with its uid).
    children: Mapping[tuple[str, str], Manifest]
    pods: tuple[Pod, ...] = ()
    model: ModelFacts = ModelFacts()
    apis: OptionalApis = OptionalApis()
    # When this operator last wrote the status; None where it hasn't yet.
    status_written_seconds: float | None = None
