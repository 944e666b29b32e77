"""The InferenceService's status as the operator writes it and tools read it."""

from typing import Annotated, Literal

from pydantic import Field

from pagefleet_contract.engine import Section
from pagefleet_contract.schema_markers import ListMap


class Condition(Section):
    """One condition, as Kubernetes' API conventions have it."""

    type: str = Field(min_length=1, max_length=316)
    """What is said: Ready, Available, ModelFits, ModelLoaded, Progressing or ScalingActive."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    observed_generation: int = Field(ge=0)
    """The generation of the spec that it was judged on."""

    last_transition_time: str = Field(max_length=64, json_schema_extra={"format": "date-time"})
    """When `status` last changed."""

    reason: str = Field(min_length=1, max_length=1024)
    """Why, in one CamelCase word."""

    message: str = Field(max_length=32_768)
    """Why, for people: what was found and what to do."""


class Effective(Section):
    """What is in force in the replicas, and why where it is not what was asked."""

    max_length: int | None = None
    """Longest request in tokens."""

    dtype: str | None = Field(default=None, max_length=32)
    """Type of the weights."""

    quantization: str | None = Field(default=None, max_length=32)
    """What linear layers' weights are kept as, if not in that type."""

    kv_dtype: str | None = Field(default=None, max_length=32)
    """Type of the stored keys and values."""

    block_size: int | None = None
    """Tokens in a KV block."""

    swap_mode: str | None = Field(default=None, max_length=32)
    """What happens when KV memory ends."""

    routing_mode: str | None = Field(default=None, max_length=32)
    """How requests find a replica."""

    image: str | None = Field(default=None, max_length=1024)
    """The engine's image."""

    notes: list[Annotated[str, Field(max_length=2048)]] = Field(default=[], max_length=32)
    """Where something in force is not what the spec asks, and why."""


class KVStatus(Section):
    """One replica's KV cache, as the runtime reports it."""

    bytes_per_token: int | None = None
    """Bytes of one token's keys and values."""

    blocks: int | None = None
    """KV blocks of one replica."""

    tokens: int | None = None
    """Tokens that they hold."""

    sequences: int | None = None
    """Sequences of the longest length that they hold at the same time."""

    host_blocks: int | None = None
    """KV blocks in host memory."""

    used_percent: int | None = None
    """Share of the blocks that running requests hold, the mean over the replicas, in percent."""

    unread_replicas: int | None = None
    """Ready replicas whose figures couldn't be read."""


class RolloutStatus(Section):
    """What holds a roll, and since when."""

    holding: str = Field(default="", max_length=2048)
    """What the roll waits for; empty where it waits for nothing."""

    since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Since when it waits."""


class ScalingDecision(Section):
    """One change of the number of replicas."""

    time: str = Field(json_schema_extra={"format": "date-time"})
    """When it was decided."""

    from_: int = Field(alias="from")
    """Replicas before."""

    to: int
    """Replicas after."""

    reason: str = Field(max_length=1024)
    """Why."""


class AutoscalingStatus(Section):
    """What the scaler decided."""

    desired_replicas: int | None = None
    """Replicas that the scaler wants."""

    pressure_percent: int | None = None
    """Pinned blocks and queued tokens as a share of the capacity, in percent."""

    decisions: list[ScalingDecision] = Field(default=[], max_length=10)
    """The last ten decisions."""


class InferenceServiceStatus(Section):
    """What the operator saw and did."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""

    replicas: int | None = None
    """Pods of the engine that exist, one that a roll has beyond `spec.replicas` included."""

    updated_replicas: int | None = None
    """Pods of this generation."""

    ready_replicas: int | None = None
    """Pods that have produced a token and answer."""

    ready: str | None = Field(default=None, max_length=32)
    """Ready pods of those that are asked for, as kubectl shows a Deployment's: 2/3."""

    selector: str | None = Field(default=None, max_length=1024)
    """Labels of the engine's pods, for the scale subresource."""

    url: str | None = Field(default=None, max_length=1024)
    """Where clients in the cluster reach the service."""

    model: str | None = Field(default=None, max_length=1024)
    """The name that clients send as `model`."""

    effective: Effective | None = None

    kv: KVStatus | None = None

    rollout: RolloutStatus | None = None

    autoscaling: AutoscalingStatus | None = None

    conditions: Annotated[list[Condition], ListMap(("type",))] = Field(default=[], max_length=16)
    """The service's conditions."""
