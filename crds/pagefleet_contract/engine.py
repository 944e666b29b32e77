"""The engine's settings: one frozen model that is CRD section, pod configuration and runtime flags at once.

Fields are snake_case in Python and camelCase in files; both spellings are accepted, unknown names are not.
A field's description, bounds and unit stand here and nowhere else.
"""

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from pagefleet_contract.schema_markers import SIZE_LENGTH, CelRule, Size, WithRules

# A model that is only played: its shape is real, its text is made up.
SIMULATED_SCHEME = "simulated://"

_QUANTITY = re.compile(r"([0-9]+)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_MULTIPLIERS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def quantity_bytes(text: str) -> int:
    """Return the bytes of a Kubernetes quantity such as `64Gi`, `512M` or `1048576`.

    Raises ValueError where the text is no whole number with an optional binary or decimal suffix.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a size; write whole bytes or a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 64Gi"
        )
    return int(match[1]) * _MULTIPLIERS[match[2] or ""]


def _checked_quantity(text: str) -> str:
    quantity_bytes(text)
    return text


Quantity = Annotated[str, Field(max_length=SIZE_LENGTH), AfterValidator(_checked_quantity), Size()]


CONTROL_CHARACTERS = r"\x00-\x1f\x7f-\x9f"
_CONTROL_CHARACTER = re.compile(f"[{CONTROL_CHARACTERS}]")


def _without_control_characters(name: object) -> object:
    """Return the name as it is, or refuse it in words: the pattern says the same to the API server."""
    found = _CONTROL_CHARACTER.search(name) if isinstance(name, str) else None
    if found is not None:
        raise ValueError(f"the name has the control character {found[0]!r}; leave it out: logs and metrics show it")
    return name


# The name of a model as clients send it. It also stands in log lines and in labels of metrics.
ServedName = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=f"^[^{CONTROL_CHARACTERS}]+$"),
    BeforeValidator(_without_control_characters),
]


class Section(BaseModel):
    """What every part of the settings shares: frozen, camelCase in files, nothing unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


class ModelSettings(Section):
    """The model and how it is loaded."""

    uri: str = Field(min_length=1)
    """Where the model is: hf://OWNER/NAME, s3://BUCKET/PREFIX, file://PATH, package://DISTRIBUTION[/PATH], a plain
    path to a Hugging Face directory or a GGUF file, or simulated://NAME for a well-known model that is only played."""

    revision: str | None = None
    """Branch, tag or commit of an hf:// model; the hub's default branch if absent."""

    served_name: ServedName | None = None
    """The name that clients send as `model`; if absent, the last part of the URI."""

    max_length: int | None = Field(default=None, ge=1)
    """Longest request in tokens, prompt and answer together; if absent, the model's own. Cut to what
    the KV budget holds."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations; auto is the model's own, and on a CPU bfloat16 only where the
    CPU has instructions for it, float32 otherwise."""

    quantization: Literal["none", "int8"] = "none"
    """What linear layers' weights are kept as: none is `dtype`; int8 takes half of bfloat16's memory and about half its
    time, and answers a little differently. On a CPU alone, with the C++ kernels."""

    kernels: Literal["auto", "cpp", "numba", "triton", "plain"] = "auto"
    """What computes. On a CPU cpp is C++ for its instruction set, compiled at the first start, with packed weights and
    fused layers; numba needs no compiler, and packs weights alone; plain is PyTorch alone. auto is the first of them
    that can be had. On a GPU auto is triton, or else plain. Where what is named can't be had, it is plain."""


_BUDGET_PERCENT = 90


class Budget(Section, WithRules):
    """How much memory the KV cache gets: at most one of the three fields."""

    blocks: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Number of KV blocks."""

    memory: Quantity | None = None
    """Bytes for KV blocks, of all the replica's GPUs together, as a quantity such as 2Gi."""

    memory_percent: int | None = Field(default=None, ge=1, le=100)
    """Share of the device's memory (on a CPU: of the container's limit) for weights, workspace and KV
    together, in percent; 90 where none of the three is given."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "[has(self.blocks), has(self.memory), has(self.memoryPercent)].filter(given, given).size() <= 1",
            "`budget` must have at most one of `blocks`, `memory` and `memoryPercent`",
        ),
    )

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        given = [name for name in ("blocks", "memory", "memory_percent") if getattr(self, name) is not None]
        if len(given) > 1:
            found = " and ".join(to_camel(name) for name in given)
            raise ValueError(
                f"kvCache.budget has {found}; it must have at most one of blocks, memory and memoryPercent"
            )
        return self

    @property
    def percent(self) -> int | None:
        """The share of the memory in percent, given or by default; None where blocks or bytes are given.

        It is no default of the schema: that would be written into each object, and stand there beside the field that
        a later edit gives.
        """
        if self.blocks is not None or self.memory is not None:
            return None
        return _BUDGET_PERCENT if self.memory_percent is None else self.memory_percent


class Retention(Section):
    """How long cached blocks that nothing uses are kept."""

    policy: Literal["LRU"] = "LRU"
    """Which cached block goes first when room is needed: the one unused for longest."""

    ttl_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """Longest time that an unused cached block is kept, in seconds; no limit if absent."""


class PrefixSharing(Section):
    """Whether requests that begin alike share KV blocks."""

    mode: Literal["Disabled", "Service", "Tenant"] = "Service"
    """Who may share the KV of equal prompt beginnings: nobody, every request of this service, or only
    requests of the same tenant (API key)."""

    retention: Retention = Retention()


class Swap(Section):
    """What happens when KV memory ends."""

    mode: Literal["Disabled", "Recompute"] = "Recompute"
    """What happens when KV memory ends. Recompute frees the youngest request's blocks and computes them
    again later. Disabled never moves a running request: admission reserves maxLength for each."""


class KVCacheSettings(Section):
    """The paged KV cache."""

    block_size: Literal[1, 2, 4, 8, 16, 32, 64, 128] = 16
    """Tokens in a KV block (page); a power of two."""

    budget: Budget = Budget()

    dtype: Literal["auto", "bfloat16", "float16", "float32", "fp8", "int8"] = "auto"
    """Type of the stored keys and values; auto is the model's dtype. fp8 (e4m3, scales by layer) takes half of
    bfloat16's memory. int8 (a scale for each key and value) takes 3 to 6 % more than that and changes answers less,
    hardly more than bfloat16's own rounding. On CPUs with products of bytes or bfloat16 both decode as fast as
    bfloat16, on others they cost time."""

    prefix_sharing: PrefixSharing = PrefixSharing()

    swap: Swap = Swap()

    watermark_percent: int = Field(default=1, ge=0, le=50)
    """Share of the blocks that admission leaves free for running requests to grow, in percent; at least
    one block while anything runs."""


class SchedulingSettings(Section):
    """How requests wait and run together."""

    max_sequences: int = Field(default=256, ge=1, le=4096)
    """Most sequences that run at the same time (a request with n choices counts n)."""

    step_milliseconds: int | None = Field(default=None, ge=5, le=10_000)
    """How long one engine step may take, in milliseconds; it sets the token budget from measured speed.
    If absent, 100 on a CPU and 50 on a GPU."""

    max_batch_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    """Fixed token budget of a step; if absent, the budget follows stepMilliseconds."""

    max_queue: int = Field(default=512, ge=1, le=100_000)
    """Most requests that wait; one more is answered with 429."""

    queue_timeout_seconds: int = Field(default=60, ge=1, le=86_400)
    """Longest time that a request waits for its first step, in seconds; then it is answered with 503."""

    policy: Literal["FCFS", "Priority"] = "FCFS"
    """Order of the waiting requests: by arrival, or by the request's priority and then by arrival. Both age:
    a request that others overtook too often is served next."""


class ServingSettings(Section):
    """The API that the server answers."""

    api_keys_file: str | None = None
    """File with one tenant's API key per line, as KEY or NAME=KEY, or folder with a file per tenant, as a mounted
    Secret is; without it the API is open."""

    operator_key_file: str | None = None
    """File with the key that /pagefleet/v1/… answers to, or with its digest as sha256:HEX; without it those paths
    answer 403."""

    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, le=2**30)
    """Largest request body, in bytes; a larger one is answered with 413."""

    stall_limit_seconds: int = Field(default=60, ge=1, le=86_400)
    """Longest time without a finished step while work waits, in seconds; then liveness fails. Readiness fails
    after a third of it."""

    drain_timeout_seconds: int = Field(default=600, ge=0, le=86_400)
    """Longest time that SIGTERM or a drain waits for running requests, in seconds; then they end with an
    error event."""

    grammar_timeout_seconds: int = Field(default=10, ge=1, le=600)
    """Longest time that compiling a JSON schema may take, in seconds; then the request is answered with 400."""

    vllm_metric_names: Literal["Disabled", "Enabled"] = "Disabled"
    """Whether /metrics also carries the figures under the names that vLLM uses."""


class ParallelSettings(Section):
    """How many processes compute the model together."""

    tensor: int = Field(default=1, ge=1, le=1024)
    """Ranks that each hold an equal share of the attention heads and of the weights: one process per GPU, or, on a CPU,
    processes that divide its cores. It must divide the model's heads and key-value heads."""


class SimulationSettings(Section):
    """How a simulated:// model behaves; nothing of it concerns a real one."""

    accelerator: str | None = Field(default=None, max_length=63)
    """The accelerator whose speed and memory are played, such as h100, or several as 4xh100; the CPU that the step
    times were measured on if absent."""

    memory: Quantity | None = None
    """Memory of the simulated device, as a quantity such as 80Gi; if absent, the accelerator's own, or 256Gi where none
    is named. What the machine has, and accelerator.memory, doesn't count."""

    load_seconds: int = Field(default=0, ge=0, le=86_400)
    """How long loading takes, in seconds."""

    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the generated tokens."""


class EngineConfig(Section):
    """Everything that a replica needs to know to serve one model."""

    model: ModelSettings
    kv_cache: KVCacheSettings = KVCacheSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    serving: ServingSettings = ServingSettings()
    parallel: ParallelSettings = ParallelSettings()
    simulation: SimulationSettings = SimulationSettings()

    @model_validator(mode="after")
    def _ranks_of_a_real_model(self) -> Self:
        if self.parallel.tensor > 1 and self.model.uri.startswith(SIMULATED_SCHEME):
            raise ValueError(
                f"parallel.tensor is {self.parallel.tensor}, but model.uri is {self.model.uri}, which is only played; "
                "say how many accelerators are played in simulation.accelerator, such as 4xh100"
            )
        return self

    @model_validator(mode="after")
    def _weights_that_can_be_multiplied(self) -> Self:
        if self.model.quantization != "none" and self.model.kernels not in ("auto", "cpp"):
            raise ValueError(
                f"model.quantization is {self.model.quantization} and model.kernels {self.model.kernels}; only the C++ "
                "kernels multiply such weights, so set model.kernels to auto or cpp"
            )
        return self

    @model_validator(mode="after")
    def _simulation_of_a_simulated_model(self) -> Self:
        if self.simulation != SimulationSettings() and not self.model.uri.startswith(SIMULATED_SCHEME):
            raise ValueError(
                f"simulation is set, but model.uri is {self.model.uri}; it concerns {SIMULATED_SCHEME} models alone, "
                "so leave it out"
            )
        return self
