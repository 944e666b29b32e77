"""What a user may lay over the pods of the engine: scheduling, environment, volumes. What Kubernetes itself defines
stays open here; the API server checks it when the Deployment is applied."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from pagefleet_contract.engine import Section
from pagefleet_contract.names import (
    ENV_POD_IP,
    ENV_POD_NAME,
    ENV_POD_NAMESPACE,
    GROUP,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MOUNT_ROOT,
)
from pagefleet_contract.schema_markers import CelRule, IntOrString, ListMap, ListSet, Open, OpenField, WithRules

# An object or list that Kubernetes defines; the API server checks it when the Deployment is applied.
OpenObject = Annotated[dict[str, Any], Open()]
_Volume = Annotated[dict[str, Any], Open((OpenField("name", 63, "Name of the volume."),))]
_VolumeMount = Annotated[
    dict[str, Any],
    Open(
        (
            OpenField("name", 63, "Name of the volume that is mounted."),
            OpenField("mountPath", 1024, "Where in the container it is mounted."),
        )
    ),
]

ResourceName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
LabelText = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# A quantity of any resource, such as 4, 500m, 1.5 or 16Gi.
ResourceAmount = Annotated[
    str,
    Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$"),
    BeforeValidator(_as_text),
    IntOrString(),
]

RESERVED_ENV = (ENV_POD_NAME, ENV_POD_NAMESPACE, ENV_POD_IP, "HOME", "TMPDIR", "KUBECONFIG")
RESERVED_VOLUMES = ("config", "live", "keys", "model", "cache", "tmp")


class EnvVar(Section):
    """One environment variable."""

    name: str = Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")
    """Name of the variable; those that pagefleet sets itself are reserved."""

    value: str | None = Field(default=None, max_length=32_768)
    """Its value; $(NAME) stands for a variable that comes earlier."""

    value_from: OpenObject | None = None
    """Where its value comes from, as in a container: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef."""


class Resources(Section, WithRules):
    """What a replica asks for beside its accelerator, and its limits."""

    requests: dict[str, ResourceAmount] = Field(default={}, max_length=8)
    """What a replica asks for beside its accelerator, such as cpu: 4 and memory: 16Gi."""

    limits: dict[str, ResourceAmount] = Field(default={}, max_length=8)
    """What a replica may take at most."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "(!has(self.requests) || self.requests.all(k, !k.contains('/')))"
            " && (!has(self.limits) || self.limits.all(k, !k.contains('/')))",
            "accelerators must be asked for in `spec.accelerator`",
        ),
    )


class PodTemplate(Section, WithRules):
    """What is laid over the engine's pods."""

    labels: dict[str, LabelText] = Field(default={}, max_length=32)
    """Labels of the pods; those that pagefleet sets itself are reserved."""

    annotations: dict[str, Annotated[str, Field(max_length=16_384)]] = Field(default={}, max_length=32)
    """Annotations of the pods; those of pagefleet.dev are reserved."""

    node_selector: dict[str, LabelText] = Field(default={}, max_length=32)
    """Labels that a node must have."""

    tolerations: list[OpenObject] = Field(default=[], max_length=32)
    """Taints that the pods bear, as in a pod."""

    affinity: OpenObject | None = None
    """Node and pod affinity, as in a pod."""

    topology_spread_constraints: list[OpenObject] = Field(default=[], max_length=8)
    """How the pods spread, as in a pod."""

    runtime_class_name: ResourceName | None = None
    """RuntimeClass of the pods."""

    priority_class_name: ResourceName | None = None
    """PriorityClass of the pods."""

    scheduler_name: ResourceName | None = None
    """Scheduler of the pods; the cluster's default if absent."""

    image_pull_secrets: Annotated[list[ResourceName], ListSet()] = Field(default=[], max_length=8)
    """Names of Secrets with logins for image registries."""

    env: Annotated[list[EnvVar], ListMap(("name",))] = Field(default=[], max_length=64)
    """Environment variables of the engine, each name once."""

    resources: Resources = Resources()

    volumes: Annotated[list[_Volume], ListMap(("name",))] = Field(default=[], max_length=16)
    """Further volumes, as in a pod; the names of pagefleet's own are reserved."""

    volume_mounts: Annotated[list[_VolumeMount], ListMap(("mountPath",))] = Field(default=[], max_length=16)
    """Where the further volumes are mounted in the engine's container; not under /pagefleet."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            f"!has(self.labels) || self.labels.all(k, !k.startsWith('{GROUP}/')"
            f" && !(k in {[LABEL_NAME, LABEL_MANAGED_BY]!r}))",
            f"`labels` must not name {GROUP}/…, {LABEL_NAME} or {LABEL_MANAGED_BY}: they are reserved",
        ),
        CelRule(
            f"!has(self.annotations) || self.annotations.all(k, !k.startsWith('{GROUP}/'))",
            f"`annotations` must not name {GROUP}/…: they are reserved",
        ),
        CelRule(
            "!has(self.env) || self.env.all(e, !e.name.startsWith('PAGEFLEET_')"
            f" && !(e.name in {list(RESERVED_ENV)!r}))",
            f"`env` must not name PAGEFLEET_…, {', '.join(RESERVED_ENV[:-1])} or {RESERVED_ENV[-1]}: they are reserved",
        ),
        CelRule(
            "!has(self.env) || self.env.all(e, has(e.value) != has(e.valueFrom))",
            "`env` must have exactly one of `value` and `valueFrom` for each name",
        ),
        CelRule(
            f"!has(self.volumes) || self.volumes.all(v, !(v.name in {list(RESERVED_VOLUMES)!r}))",
            f"`volumes` must not use the names {', '.join(RESERVED_VOLUMES[:-1])} or {RESERVED_VOLUMES[-1]}: reserved",
        ),
        CelRule(
            f"!has(self.volumeMounts) || self.volumeMounts.all(m, m.name in {list(RESERVED_VOLUMES)!r}"
            " || (has(self.volumes) && self.volumes.exists(v, v.name == m.name)))",
            "`volumeMounts` must name volumes that stand in `volumes`",
        ),
        CelRule(
            f"!has(self.volumeMounts) || self.volumeMounts.all(m, m.mountPath != '{MOUNT_ROOT}'"
            f" && !m.mountPath.startsWith('{MOUNT_ROOT}/'))",
            f"`volumeMounts` must not lie under {MOUNT_ROOT}: it is reserved",
        ),
        CelRule(
            "!has(self.volumeMounts) || self.volumeMounts.all(m, m.mountPath.startsWith('/')"
            " && !m.mountPath.contains('//') && !m.mountPath.contains('/./') && !m.mountPath.contains('/..'))",
            "`volumeMounts` must be absolute paths without `//`, `/./` and `/..`",
        ),
    )
