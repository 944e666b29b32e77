"""What the pods of engine and router have in common: security, environment, probes, volumes."""

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import (
    ENV_LISTEN_ADDRESS,
    ENV_POD_IP,
    ENV_POD_NAME,
    ENV_POD_NAMESPACE,
    HTTP_PORT,
    HTTP_PORT_NAME,
    IMAGE_GROUP_ID,
    LISTEN_ALL,
    MOUNT_TMP,
    PATH_LIVE,
    PATH_READY,
)
from pagefleet_operator.manifests.metadata import Manifest

# Beside draining, what a program may take to end.
GRACE_BEYOND_DRAIN_SECONDS = 10

POD_SECURITY: Mapping[str, Any] = {
    "runAsNonRoot": True,
    # Claims that pods write to, and the files of mounted Secrets, belong to the image's group.
    "fsGroup": IMAGE_GROUP_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

CONTAINER_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}


def own_environment() -> list[Manifest]:
    """Return what every pod of ours has in its environment; nobody else may set these."""
    return [
        {"name": ENV_POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": ENV_POD_NAMESPACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": ENV_LISTEN_ADDRESS, "value": LISTEN_ALL},
        {"name": "HOME", "value": MOUNT_TMP},
        {"name": "TMPDIR", "value": MOUNT_TMP},
    ]


def http_port() -> list[Manifest]:
    return [{"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT, "protocol": "TCP"}]


def liveness_probe() -> Manifest:
    # A minute: an interpreter that starts on a busy node imports for half of it.
    return _probe(PATH_LIVE, period_seconds=10, timeout_seconds=5, failures=6)


def readiness_probe() -> Manifest:
    return _probe(PATH_READY, period_seconds=2, timeout_seconds=5, failures=3)


def startup_probe(limit_seconds: int) -> Manifest:
    """Return a probe that has a replica restarted which isn't ready within the limit."""
    period_seconds = min(5, limit_seconds)
    return _probe(PATH_READY, period_seconds, timeout_seconds=5, failures=-(-limit_seconds // period_seconds))


def _probe(path: str, period_seconds: int, timeout_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    }


def config_volume(name: str, config_map: str) -> Manifest:
    return {"name": name, "configMap": {"name": config_map}}


def secret_volume(name: str, secret: str) -> Manifest:
    return {"name": name, "secret": {"secretName": secret}}


def scratch_volume(name: str) -> Manifest:
    return {"name": name, "emptyDir": {}}


def mount(name: str, path: str, *, read_only: bool) -> Manifest:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def pull_secrets(*names: str) -> list[Manifest]:
    return [{"name": name} for name in dict.fromkeys(names)]
