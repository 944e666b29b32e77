"""What the pods of a service say about its replicas: where each is, and whether it may get requests. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagefleet_contract.names import ANNOTATION_DRAIN

ReplicaState = Literal["ready", "draining", "unready"]
STATES: tuple[ReplicaState, ...] = ("ready", "draining", "unready")


@dataclass(frozen=True, slots=True)
class Replica:
    uid: str
    name: str
    address: str  # empty as long as the pod has none
    state: ReplicaState


def replica_of(pod: Mapping[str, Any]) -> Replica | None:
    """Return the replica that a pod is, or None where it has ended for good."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    return Replica(metadata["uid"], metadata["name"], status.get("podIP") or "", _state(metadata, status))


def _state(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> ReplicaState:
    # A pod that is being deleted stays Ready until its processes have ended.
    if metadata.get("deletionTimestamp") or ANNOTATION_DRAIN in (metadata.get("annotations") or {}):
        return "draining"
    conditions = status.get("conditions") or ()
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return "ready" if is_ready and status.get("podIP") else "unready"


class PodList:
    """The pods as a list and the events after it tell them."""

    def __init__(self, pods: list[dict[str, Any]]) -> None:
        self._replicas = {pod["metadata"]["uid"]: replica_of(pod) for pod in pods}

    def apply(self, kind: str, pod: Mapping[str, Any]) -> None:
        """Take an event of a watch: ADDED, MODIFIED or DELETED."""
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._replicas.pop(uid, None)
        else:
            self._replicas[uid] = replica_of(pod)

    def replicas(self) -> tuple[Replica, ...]:
        """Return the replicas, in the order of their names."""
        found = (replica for replica in self._replicas.values() if replica is not None)
        return tuple(sorted(found, key=lambda replica: replica.name))
