"""What an administrator may set on the operator. The chart hands it over as a file, and the chart's values schema is
rendered from it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pagefleet_contract.engine import Section
from pagefleet_contract.pod_template import ResourceAmount, ResourceName
from pagefleet_contract.schema_markers import ListSet

_Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class Images(Section):
    """The images of all pods, each with its registry and its tag or digest."""

    engine: str = Field(default="pagefleet-runtime:0.1.0", min_length=1, max_length=1024)
    """Image of engines that run a real model; it holds torch."""

    light: str = Field(default="pagefleet:0.1.0", min_length=1, max_length=1024)
    """Image of the operator, of routers and of simulated engines."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes pull the images."""

    pull_secrets: Annotated[list[ResourceName], ListSet()] = Field(default=[], max_length=16)
    """Names of Secrets, in the release's namespace and in each watched one, with logins for the registry."""


class RouterSettings(Section):
    """The front door that each service gets."""

    replicas: int = Field(default=1, ge=1, le=20)
    """Pods of each service's router."""

    cpu_request: ResourceAmount = "50m"
    """CPU that a router pod asks for, as a quantity."""

    memory_request: ResourceAmount = "96Mi"
    """Memory that a router pod asks for, as a quantity."""

    memory_limit: ResourceAmount = "512Mi"
    """Memory that a router pod may take, as a quantity."""


class OperatorSettings(Section):
    """Everything that the operator reads at start."""

    watch_namespaces: Annotated[list[_Namespace], ListSet()] = Field(default=[], max_length=100)
    """Namespaces whose services this operator looks after. With none given and scope Namespaced it is the release's
    own; with scope Cluster none may be given."""

    scope: Literal["Namespaced", "Cluster"] = "Namespaced"
    """Whether the operator looks after the named namespaces, or after all of them with cluster-wide rights. Cluster and
    watchNamespaces exclude each other."""

    images: Images = Images()

    router: RouterSettings = RouterSettings()

    lease_name: ResourceName = "pagefleet-operator"
    """Lease in the operator's namespace for leadership and as canary of the watches."""

    lease_seconds: int = Field(default=15, ge=2, le=300)
    """How long a leader that is gone keeps others waiting, in seconds. It renews three times in that time."""

    workers: int = Field(default=8, ge=1, le=64)
    """Services that are reconciled at the same time."""

    resync_seconds: int = Field(default=300, ge=5, le=86_400)
    """How often each service is looked at without an event, in seconds."""

    figures_seconds: int = Field(default=15, ge=1, le=3600)
    """How often the figures of ready replicas are read, in seconds."""

    figures_timeout_seconds: int = Field(default=3, ge=1, le=60)
    """How long a replica may take to answer with its figures, in seconds."""

    status_seconds: int = Field(default=60, ge=1, le=3600)
    """How often figures that move all the time are written to status, in seconds; a change of the KV share by 5 points
    is written at once."""

    retry_seconds_max: int = Field(default=300, ge=1, le=3600)
    """Longest wait before a failed reconcile is tried again, in seconds; it doubles from one second."""

    progress_deadline_seconds: int = Field(default=1800, ge=10, le=604_800)
    """How long a roll may make no progress before Progressing says so, in seconds."""

    hub_url: str = Field(default="https://huggingface.co", max_length=1024)
    """Where the shapes of hf:// models are looked up; empty to look nothing up."""

    pod_monitors: Literal["Disabled", "Enabled"] = "Disabled"
    """Whether each service gets a PodMonitor, where that API exists."""

    network_policies: Literal["Disabled", "Enabled"] = "Disabled"
    """Whether each service gets a NetworkPolicy that lets only its router, the operator and metrics collectors of the
    cluster reach the engines."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """What is logged, one JSON object a line."""

    @model_validator(mode="after")
    def _no_names_with_the_cluster(self) -> "OperatorSettings":
        if self.scope == "Cluster" and self.watch_namespaces:
            raise ValueError("scope is Cluster and watchNamespaces names some; give one or the other")
        return self
