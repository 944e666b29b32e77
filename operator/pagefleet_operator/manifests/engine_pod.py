"""The engine's pod template: one container that serves the model, and what the user lays over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.known_models import is_simulated
from pagefleet_contract.names import (
    ANNOTATION_TEMPLATE_HASH,
    COMPONENT_ENGINE,
    ENV_CACHE,
    FILE_ENGINE,
    FILE_LIVE,
    FILE_OPERATOR_KEYS,
    MOUNT_CACHE,
    MOUNT_CONFIG,
    MOUNT_KEYS,
    MOUNT_LIVE,
    MOUNT_MODEL,
    MOUNT_SHARED_MEMORY,
    MOUNT_TMP,
)
from pagefleet_contract.service_settings import claim_of, num_ranks, uri_in_pod
from pagefleet_contract.settings import Images
from pagefleet_operator.manifests.metadata import Manifest, Owner, content_hash, labels, without_absent
from pagefleet_operator.manifests.pod import (
    CONTAINER_SECURITY,
    GRACE_BEYOND_DRAIN_SECONDS,
    POD_SECURITY,
    config_volume,
    http_port,
    liveness_probe,
    mount,
    own_environment,
    pull_secrets,
    readiness_probe,
    scratch_volume,
    secret_volume,
    startup_probe,
)
from pagefleet_operator.manifests.resources import engine_resources

# What GPUs without a link between them exchange goes through it, and a container has 64 MiB by itself.
_SHARED_MEMORY = "1Gi"


@dataclass(frozen=True, slots=True)
class EnginePod:
    """What a template is made of. `image` is the one in force, which may be older than the operator's default."""

    owner: Owner
    spec: InferenceServiceSpec
    config_map: str
    live_config_map: str
    image: str
    images: Images


def default_image(spec: InferenceServiceSpec, images: Images) -> str:
    """Return the operator's image for engines of this kind: a simulated one needs no torch."""
    return images.light if is_simulated(spec.model.uri) else images.engine


def engine_template(pod: EnginePod) -> Manifest:
    """Return the template, with its own hash among its annotations."""
    template: Manifest = without_absent(_template(pod))
    hashed = content_hash(template)
    template["metadata"].setdefault("annotations", {})[ANNOTATION_TEMPLATE_HASH] = hashed
    return template


def template_hash(template: Manifest) -> str:
    hashed: str = template["metadata"]["annotations"][ANNOTATION_TEMPLATE_HASH]
    return hashed


def _template(pod: EnginePod) -> Manifest:
    overlay, spec = pod.spec.pod_template, pod.spec
    metadata: dict[str, Any] = {"labels": {**overlay.labels, **labels(pod.owner, COMPONENT_ENGINE)}}
    own = {name: value for name, value in overlay.annotations.items() if name != ANNOTATION_TEMPLATE_HASH}
    if own:
        metadata["annotations"] = own
    secrets = pull_secrets(*overlay.image_pull_secrets, *pod.images.pull_secrets)
    return {
        "metadata": metadata,
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": spec.rollout.drain_timeout_seconds + GRACE_BEYOND_DRAIN_SECONDS,
            "securityContext": dict(POD_SECURITY),
            "imagePullSecrets": secrets or None,
            "nodeSelector": dict(overlay.node_selector) or None,
            "tolerations": list(overlay.tolerations) or None,
            "affinity": overlay.affinity or None,
            "topologySpreadConstraints": list(overlay.topology_spread_constraints) or None,
            "runtimeClassName": overlay.runtime_class_name,
            "priorityClassName": overlay.priority_class_name,
            "schedulerName": overlay.scheduler_name,
            "containers": [_container(pod)],
            "volumes": [*_volumes(pod), *overlay.volumes],
        },
    }


def _container(pod: EnginePod) -> Manifest:
    spec = pod.spec
    credentials = spec.model.credentials_secret
    limit_seconds = spec.serving.start_timeout_seconds
    return {
        "name": COMPONENT_ENGINE,
        "image": pod.image,
        "imagePullPolicy": pod.images.pull_policy,
        "command": ["python", "-m", "pagefleet_runtime"],
        "args": _arguments(spec),
        "env": _environment(spec),
        "envFrom": None if credentials is None else [{"secretRef": {"name": credentials}}],
        "ports": http_port(),
        "resources": engine_resources(spec),
        "livenessProbe": liveness_probe(),
        "readinessProbe": readiness_probe(),
        "startupProbe": None if limit_seconds is None else startup_probe(limit_seconds),
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*_mounts(spec), *spec.pod_template.volume_mounts],
    }


def _arguments(spec: InferenceServiceSpec) -> list[str]:
    arguments = [
        *("--config", f"{MOUNT_CONFIG}/{FILE_ENGINE}"),
        *("--live", f"{MOUNT_LIVE}/{FILE_LIVE}"),
        *("--serving-operator-key-file", f"{MOUNT_CONFIG}/{FILE_OPERATOR_KEYS}"),
    ]
    if spec.tenancy.api_keys_secret is not None:
        arguments += ["--serving-api-keys-file", MOUNT_KEYS]
    if claim_of(spec.model.uri) is not None:
        # Here and not in the file: nodes without mounts rewrite paths in arguments only.
        arguments += ["--model-uri", uri_in_pod(spec.model.uri)]
    return arguments


def _environment(spec: InferenceServiceSpec) -> list[Manifest]:
    """Return ours first, so that $(POD_IP) can be used, then the user's in their order; each name once."""
    reserved = [*own_environment(), {"name": ENV_CACHE, "value": MOUNT_CACHE}]
    users = [_variable(entry.name, entry.value, entry.value_from) for entry in spec.pod_template.env]
    given = {entry["name"] for entry in users}
    return [*reserved, *(entry for entry in _overridable() if entry["name"] not in given), *users]


def _overridable() -> Sequence[Manifest]:
    return (
        {"name": "HF_HOME", "value": f"{MOUNT_CACHE}/huggingface"},
        {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
    )


def _variable(name: str, value: str | None, value_from: Manifest | None) -> Manifest:
    return {"name": name, "valueFrom": value_from} if value_from is not None else {"name": name, "value": value or ""}


def _volumes(pod: EnginePod) -> list[Manifest]:
    spec = pod.spec
    found = [config_volume("config", pod.config_map), config_volume("live", pod.live_config_map)]
    if spec.tenancy.api_keys_secret is not None:
        found.append(secret_volume("keys", spec.tenancy.api_keys_secret))
    claim = claim_of(spec.model.uri)
    if claim is not None:
        found.append({"name": "model", "persistentVolumeClaim": {"claimName": claim[0], "readOnly": True}})
    cache = spec.model.cache_claim
    if cache is None:
        found.append(scratch_volume("cache"))
    else:
        found.append({"name": "cache", "persistentVolumeClaim": {"claimName": cache}})
    if num_ranks(spec) > 1:
        found.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}})
    return [*found, scratch_volume("tmp")]


def _mounts(spec: InferenceServiceSpec) -> list[Manifest]:
    found = [mount("config", MOUNT_CONFIG, read_only=True), mount("live", MOUNT_LIVE, read_only=True)]
    if spec.tenancy.api_keys_secret is not None:
        found.append(mount("keys", MOUNT_KEYS, read_only=True))
    if claim_of(spec.model.uri) is not None:
        found.append(mount("model", MOUNT_MODEL, read_only=True))
    if num_ranks(spec) > 1:
        found.append(mount("shared-memory", MOUNT_SHARED_MEMORY, read_only=False))
    return [*found, mount("cache", MOUNT_CACHE, read_only=False), mount("tmp", MOUNT_TMP, read_only=False)]
