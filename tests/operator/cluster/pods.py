"""Plays the kubelet: what a pod's status says is written by hand."""

from datetime import UTC, datetime
from typing import Any

from tests.e2e.cluster import Cluster, Object


def make_ready(cluster: Cluster, pod: Object, ip: str | None = None) -> None:
    """The pod runs and is ready."""
    _write(cluster, pod, "True", {"running": {"startedAt": _now()}}, ip)


def make_waiting(cluster: Cluster, pod: Object, reason: str, message: str) -> None:
    """The pod's container can't start."""
    _write(cluster, pod, "False", {"waiting": {"reason": reason, "message": message}}, None)


def _write(cluster: Cluster, pod: Object, ready: str, state: dict[str, Any], ip: str | None) -> None:
    container = pod["spec"]["containers"][0]
    running = "running" in state
    status: dict[str, Any] = {
        "phase": "Running" if running else "Pending",
        "conditions": [
            {"type": kind, "status": ready if kind != "PodScheduled" else "True", "lastTransitionTime": _now()}
            for kind in ("PodScheduled", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": running,
                "started": running,
                "restartCount": 0,
                "state": state,
            }
        ],
    }
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    metadata = pod["metadata"]
    cluster.patch_status("Pod", metadata["namespace"], metadata["name"], status)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
