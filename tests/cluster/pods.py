"""Pods as the tests of the node need them; a test names only what it is about."""

from typing import Any

from pagefleet_contract.names import HTTP_PORT, MOUNT_TMP
from tests.e2e.cluster import Object

NAME = "probe"


def pod(namespace: str, image: str, *command: str, **container: Any) -> Object:
    """A pod that the restricted profile admits, with a read-only root and no token, as the operator's are."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"app": NAME}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "containers": [
                {
                    "name": NAME,
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "env": [{"name": "HOME", "value": MOUNT_TMP}, {"name": "TMPDIR", "value": MOUNT_TMP}],
                    "volumeMounts": [{"name": "tmp", "mountPath": MOUNT_TMP}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def service(namespace: str) -> Object:
    """A Service in front of the pod."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": HTTP_PORT}]},
    }


def is_ready(found: Object | None) -> bool:
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def has_ended(found: Object | None) -> bool:
    return found is not None and found["status"].get("phase") in ("Succeeded", "Failed")


def end_of(found: Object) -> dict[str, Any]:
    """Return how the container of a pod that has ended did so."""
    return dict(found["status"]["containerStatuses"][0]["state"]["terminated"])
