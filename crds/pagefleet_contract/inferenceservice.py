"""The InferenceService as users write it: every field of the spec, typed, bounded, described and defaulted.

The CRD is rendered from these models, and the operator parses what the API server has admitted with them. What the
engine of this version can't do yet may be asked for; `unhonoured` says what is in force instead.
"""

from typing import ClassVar, Literal

from pydantic import Field

from pagefleet_contract.engine import (
    CONTROL_CHARACTERS,
    KVCacheSettings,
    ModelSettings,
    PrefixSharing,
    Quantity,
    SchedulingSettings,
    Section,
    ServedName,
    SimulationSettings,
)
from pagefleet_contract.pod_template import PodTemplate, ResourceName
from pagefleet_contract.schema_markers import CelRule, WithRules


class ModelSpec(ModelSettings, WithRules):
    """The model that is served."""

    uri: str = Field(
        min_length=1,
        max_length=1024,
        # Spelled out: engines of regular expressions differ in what white space is.
        pattern=r"^(hf|pvc|s3|file|package|simulated)://[^\x00-\x20\x7f]+$",
    )
    """Where the model is: hf://OWNER/NAME, pvc://CLAIM/PATH, s3://BUCKET/PREFIX, file://PATH (of the container),
    package://DISTRIBUTION[/PATH], or simulated://NAME for a well-known model that is only played."""

    revision: str | None = Field(default=None, min_length=1, max_length=253)
    """Branch, tag or commit of an hf:// model; the hub's default branch if absent."""

    served_name: ServedName | None = None
    """The name that clients send as `model`, without control characters; if absent, the resource's name."""

    max_length: int | None = Field(default=None, ge=1, le=100_000_000)
    """Longest request in tokens, prompt and answer together; if absent, the model's own. Cut to what
    the KV budget holds; `status.effective` says so."""

    credentials_secret: ResourceName | None = None
    """Secret whose entries become environment variables of the engine, for models that need a login: HF_TOKEN for
    hf://, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the like for s3://."""

    cache_claim: ResourceName | None = None
    """PersistentVolumeClaim that keeps downloaded and converted models; if absent, each pod keeps its own for as long
    as it lives."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "`revision` must be absent unless `uri` is an hf:// one",
        ),
        CelRule(
            "!self.uri.startsWith('package://') || !self.uri.split('/').exists(part, part == '..')",
            "`uri` must have no part `..` where it is a package:// one: it names a package and what lies in it",
        ),
        CelRule(
            "!has(self.credentialsSecret) || self.uri.startsWith('hf://') || self.uri.startsWith('s3://')",
            "`credentialsSecret` must be absent unless `uri` is an hf:// or s3:// one",
        ),
        CelRule(
            f"!has(self.servedName) || !self.servedName.matches(r'[{CONTROL_CHARACTERS}]')",
            "`servedName` must have no control characters: it stands in logs and metrics",
        ),
        CelRule(
            "self.quantization == 'none' || self.kernels == 'auto' || self.kernels == 'cpp'",
            "`quantization` int8 needs the C++ kernels, so `kernels` must be auto or cpp",
        ),
    )


# The accelerator.resource of replicas without an accelerator.
CPU = "cpu"


class Accelerator(Section):
    """What each replica computes on."""

    resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        pattern=r"^(cpu|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$",
    )
    """The extended resource that each replica asks for, such as nvidia.com/gpu, amd.com/gpu or
    nvidia.com/mig-1g.10gb; or cpu for replicas without one."""

    count: int = Field(default=1, ge=1, le=1024)
    """How many of it a replica gets; for cpu, the cores of its one process. Several GPUs compute the model together
    (tensor parallel), each with an equal share of its heads, so their number must divide the key-value heads."""

    memory: Quantity | None = None
    """Memory of one accelerator, such as 80Gi; for cpu, the container's memory limit. If absent, it is learnt from the
    running pods, and a replica on cpu has no limit."""


class Swap(Section, WithRules):
    """What happens when KV memory ends."""

    mode: Literal["Disabled", "Recompute", "Host", "Auto"] = "Recompute"
    """What happens when KV memory ends. Recompute frees the youngest request's blocks and computes them again later,
    Host copies them to host memory, Auto takes what is cheaper for each. Disabled never moves a running request:
    admission reserves maxLength for each."""

    host_memory: Quantity | None = None
    """Host memory of one replica for swapped blocks, such as 64Gi."""

    high_watermark_percent: int | None = Field(default=None, ge=1, le=100)
    """Share of the blocks in use from which pages are written to the host ahead of need, in percent."""

    low_watermark_percent: int | None = Field(default=None, ge=0, le=99)
    """Share of the blocks in use down to which room is made, in percent."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "has(self.hostMemory) == (self.mode == 'Host' || self.mode == 'Auto')",
            "`hostMemory` must be given where `mode` is Host or Auto, and only there",
        ),
        CelRule(
            "!(has(self.highWatermarkPercent) || has(self.lowWatermarkPercent))"
            " || self.mode == 'Host' || self.mode == 'Auto'",
            "`highWatermarkPercent` and `lowWatermarkPercent` must be absent unless `mode` is Host or Auto",
        ),
        CelRule(
            "!has(self.highWatermarkPercent) || !has(self.lowWatermarkPercent)"
            " || self.lowWatermarkPercent < self.highWatermarkPercent",
            "`lowWatermarkPercent` must be less than `highWatermarkPercent`",
        ),
    )


class KVCache(KVCacheSettings):
    """The paged KV cache of each replica."""

    prefix_sharing: PrefixSharing = PrefixSharing()

    swap: Swap = Swap()  # type: ignore[assignment]


class ScaleUp(Section):
    """How replicas are added."""

    stabilization_seconds: int = Field(default=0, ge=0, le=3600)
    """How long pressure must last before replicas are added, in seconds."""

    max_percent: int = Field(default=100, ge=1, le=1000)
    """Most replicas added in one step, as a share of those that are there, in percent; at least one."""


class ScaleDown(Section):
    """How replicas are taken away."""

    stabilization_seconds: int = Field(default=300, ge=0, le=86_400)
    """How long the pressure must have been low before a replica is taken away, in seconds."""

    max_replicas: int = Field(default=1, ge=1, le=1000)
    """Most replicas taken away in one step."""


class ScaleToZero(Section):
    """Whether an idle service keeps a replica."""

    mode: Literal["Disabled", "Enabled"] = "Disabled"
    """Whether a service without requests may have no replica at all."""

    idle_seconds: int = Field(default=600, ge=1, le=604_800)
    """How long no request may have come before the last replica goes, in seconds."""


class Autoscaling(Section, WithRules):
    """Who changes the number of replicas, and when."""

    class_: Literal["Builtin", "HPA", "KEDA", "External"] = Field(default="Builtin", alias="class")
    """Who decides the number of replicas. Each of them writes it through the scale subresource."""

    min_replicas: int = Field(default=1, ge=0, le=1000)
    """Fewest replicas."""

    max_replicas: int = Field(default=1, ge=1, le=1000)
    """Most replicas."""

    target_kv_percent: int = Field(default=80, ge=1, le=100, alias="targetKVPercent")
    """Share of the KV capacity that pinned blocks and queued tokens may take before replicas are added, in percent."""

    scale_up: ScaleUp = ScaleUp()

    scale_down: ScaleDown = ScaleDown()

    scale_to_zero: ScaleToZero = ScaleToZero()

    warm_replicas: int = Field(default=0, ge=0, le=1000)
    """Replicas kept beyond what the load needs."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule("self.minReplicas <= self.maxReplicas", "`minReplicas` must not exceed `maxReplicas`"),
        CelRule("self.warmReplicas < self.maxReplicas", "`warmReplicas` must be less than `maxReplicas`"),
        CelRule(
            "self.minReplicas > 0 || self.scaleToZero.mode == 'Enabled'",
            "`minReplicas` must be at least 1 unless `scaleToZero.mode` is Enabled",
        ),
    )


class Routing(Section):
    """How requests find a replica."""

    mode: Literal["LeastPressure", "PrefixAware", "Service", "InferencePool"] = "LeastPressure"
    """How requests find a replica. LeastPressure takes the replica with the fewest requests in flight; PrefixAware
    prefers one that has the beginning of the prompt; Service has no router of its own, the engine pods stand behind
    the Service; InferencePool leaves it to a gateway."""

    load_cap_percent: int = Field(default=125, ge=100, le=1000)
    """How far above the mean load a replica may be and still be preferred for its prefix, in percent."""


class KVQuotaPercent(Section):
    """How much of the KV cache one tenant may hold."""

    default: int = Field(default=100, ge=1, le=100)
    """Share of the KV blocks that the running requests of one tenant may hold, in percent."""


class Tenancy(Section):
    """Who may use the service, and how much of it."""

    api_keys_secret: ResourceName | None = None
    """Secret with one entry per tenant: the entry's name is the tenant's, its value the API key. Without it the API is
    open to everybody who reaches it."""

    kv_quota_percent: KVQuotaPercent = KVQuotaPercent()


class Rollout(Section, WithRules):
    """How a change of the spec reaches the replicas."""

    max_surge: int = Field(default=1, ge=0, le=100)
    """Replicas that a roll may have beyond `replicas`. Where no accelerator is free for one, a replica goes first, and
    `status.rollout` says so."""

    max_unavailable: int = Field(default=0, ge=0, le=100)
    """Replicas that a roll may take away before their successors are ready."""

    drain_timeout_seconds: int = Field(default=600, ge=0, le=86_400)
    """Longest time that a replica that is to go waits for its running requests, in seconds; then they end with an
    error event."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule("self.maxSurge > 0 || self.maxUnavailable > 0", "one of `maxSurge` and `maxUnavailable` must not be 0"),
    )


class Serving(Section):
    """The API that each replica serves."""

    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, le=2**30)
    """Largest request body, in bytes; a larger one is answered with 413."""

    stall_limit_seconds: int = Field(default=60, ge=1, le=86_400)
    """Longest time without a finished step while work waits, in seconds; then the replica is restarted."""

    grammar_timeout_seconds: int = Field(default=10, ge=1, le=600)
    """Longest time that compiling a JSON schema may take, in seconds; then the request is answered with 400."""

    vllm_metric_names: Literal["Disabled", "Enabled"] = "Disabled"
    """Whether the replicas' /metrics also carries the figures under the names that vLLM uses."""

    start_timeout_seconds: int | None = Field(default=None, ge=1, le=604_800)
    """Longest time that a replica may take to load, in seconds; then it is restarted. No limit if absent: a replica
    that makes progress is left alone."""


class InferenceServiceSpec(Section, WithRules):
    """What a user asks for."""

    replicas: int = Field(default=1, ge=0, le=1000)
    """How many replicas serve the model. `kubectl scale` and every autoscaler write this number through the scale
    subresource; a manifest that leaves it out never resets it."""

    model: ModelSpec

    image: str | None = Field(default=None, min_length=1, max_length=1024)
    """Image of the engine; the operator's default if absent. Another default rolls nothing by itself: a running service
    keeps its image until its spec asks for a roll."""

    accelerator: Accelerator = Accelerator()

    kv_cache: KVCache = KVCache()

    scheduling: SchedulingSettings = SchedulingSettings()

    serving: Serving = Serving()

    autoscaling: Autoscaling | None = None
    """Who changes the number of replicas, and when; if absent, nothing scales by itself."""

    routing: Routing = Routing()

    tenancy: Tenancy = Tenancy()

    rollout: Rollout = Rollout()

    pod_template: PodTemplate = PodTemplate()

    simulation: SimulationSettings | None = None
    """How a simulated:// model behaves."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "!has(self.simulation) || self.model.uri.startsWith('simulated://')",
            "`simulation` must be absent unless `model.uri` is a simulated:// one",
        ),
        CelRule(
            "self.model.quantization == 'none' || self.accelerator.resource == 'cpu'"
            " || self.model.uri.startsWith('simulated://')",
            "`model.quantization` int8 is computed on a CPU alone, so `accelerator.resource` must be cpu",
        ),
        CelRule(
            "self.model.kernels != 'triton' || self.accelerator.resource != 'cpu'"
            " || self.model.uri.startsWith('simulated://')",
            "`model.kernels` triton computes on a GPU, so `accelerator.resource` must not be cpu",
        ),
        CelRule(
            "!(self.model.kernels in ['cpp', 'numba']) || self.accelerator.resource == 'cpu'"
            " || self.model.uri.startsWith('simulated://')",
            "`model.kernels` cpp and numba compute on a CPU, so `accelerator.resource` must be cpu",
        ),
        CelRule(
            "self.accelerator.resource != 'cpu' || self.model.uri.startsWith('simulated://')"
            " || !has(self.podTemplate) || !has(self.podTemplate.resources) || !has(self.podTemplate.resources.limits)"
            " || !('cpu' in self.podTemplate.resources.limits)"
            " || (type(self.podTemplate.resources.limits['cpu']) == int"
            " ? self.podTemplate.resources.limits['cpu'] >= self.accelerator.count"
            " : quantity(self.podTemplate.resources.limits['cpu']).asApproximateFloat()"
            " >= double(self.accelerator.count))",
            "`podTemplate.resources.limits.cpu` must be at least `accelerator.count` where `accelerator.resource` is"
            " cpu: so many cores compute",
        ),
        CelRule(
            "self.kvCache.prefixSharing.mode != 'Tenant' || has(self.tenancy.apiKeysSecret)",
            "`kvCache.prefixSharing.mode` Tenant needs `tenancy.apiKeysSecret`: tenants are told apart by their keys",
        ),
        CelRule(
            "!has(self.autoscaling) || self.autoscaling.scaleToZero.mode == 'Disabled'"
            " || self.routing.mode != 'Service'",
            "`autoscaling.scaleToZero` needs a router, so `routing.mode` must not be Service",
        ),
    )


# On the whole object: the name becomes a Service's, a label's and a host's.
NAME_RULE = CelRule(
    "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "`metadata.name` must be at most 63 lower-case letters, digits and dashes, begin with a letter and end with a"
    " letter or digit: it names a Service",
)
