"""The router's pod template and settings: the front door of one service."""

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import (
    ANNOTATION_TEMPLATE_HASH,
    COMPONENT_ROUTER,
    FILE_ROUTER,
    MOUNT_KEYS,
    MOUNT_ROUTER,
    MOUNT_TMP,
)
from pagefleet_contract.router import RouterConfig
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.manifests.account import router_account_name
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
)


def router_config(owner: Owner, spec: InferenceServiceSpec) -> RouterConfig:
    return RouterConfig(
        service_name=owner.name,
        namespace=owner.namespace,
        served_name=spec.model.served_name or owner.name,
        max_body_bytes=spec.serving.max_body_bytes,
        drain_timeout_seconds=spec.rollout.drain_timeout_seconds,
    )


def router_template(owner: Owner, spec: InferenceServiceSpec, settings: OperatorSettings, config: Manifest) -> Manifest:
    """Return the template. `config` is the router's ConfigMap: a change of its content rolls the pods."""
    template: Manifest = without_absent(_template(owner, spec, settings, config["metadata"]["name"]))
    hashed = content_hash([template, config["data"]])
    template["metadata"]["annotations"] = {ANNOTATION_TEMPLATE_HASH: hashed}
    return template


def _template(owner: Owner, spec: InferenceServiceSpec, settings: OperatorSettings, config_map: str) -> Manifest:
    keys = spec.tenancy.api_keys_secret
    volumes = [config_volume("router", config_map), scratch_volume("tmp")]
    if keys is not None:
        volumes.append(secret_volume("keys", keys))
    return {
        "metadata": {"labels": labels(owner, COMPONENT_ROUTER)},
        "spec": {
            "serviceAccountName": router_account_name(owner, settings),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": spec.rollout.drain_timeout_seconds + GRACE_BEYOND_DRAIN_SECONDS,
            "securityContext": dict(POD_SECURITY),
            "imagePullSecrets": pull_secrets(*settings.images.pull_secrets) or None,
            "containers": [_container(settings, has_keys=keys is not None)],
            "volumes": volumes,
        },
    }


def _container(settings: OperatorSettings, *, has_keys: bool) -> Manifest:
    arguments = ["--config", f"{MOUNT_ROUTER}/{FILE_ROUTER}"]
    mounts = [mount("router", MOUNT_ROUTER, read_only=True), mount("tmp", MOUNT_TMP, read_only=False)]
    if has_keys:
        arguments += ["--api-keys-file", MOUNT_KEYS]
        mounts.append(mount("keys", MOUNT_KEYS, read_only=True))
    router = settings.router
    return {
        "name": COMPONENT_ROUTER,
        "image": settings.images.light,
        "imagePullPolicy": settings.images.pull_policy,
        "command": ["python", "-m", "pagefleet_router"],
        "args": arguments,
        "env": own_environment(),
        "ports": http_port(),
        "resources": {
            "requests": {"cpu": router.cpu_request, "memory": router.memory_request},
            "limits": {"memory": router.memory_limit},
        },
        "livenessProbe": liveness_probe(),
        "readinessProbe": readiness_probe(),
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
