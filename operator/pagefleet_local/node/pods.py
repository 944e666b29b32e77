"""What a pod's manifest says, read in one place; nothing here changes one."""

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DEFAULT_GRACE_SECONDS = 30
FINISHED_PHASES = ("Succeeded", "Failed")


def uid_of(thing: Manifest) -> str:
    return str(thing["metadata"]["uid"])


def name_of(thing: Manifest) -> str:
    return str(thing["metadata"]["name"])


def namespace_of(thing: Manifest) -> str:
    return str(thing["metadata"]["namespace"])


def long_name(pod: Manifest) -> str:
    """Return the name by which logs and messages call the pod, as the kubelet does: `NAME_NAMESPACE(UID)`."""
    return f"{name_of(pod)}_{namespace_of(pod)}({uid_of(pod)})"


def containers(pod: Manifest) -> list[Manifest]:
    return list(pod["spec"].get("containers") or ())


def init_containers(pod: Manifest) -> list[Manifest]:
    return list(pod["spec"].get("initContainers") or ())


def all_containers(pod: Manifest) -> Iterator[Manifest]:
    yield from init_containers(pod)
    yield from containers(pod)


def is_sidecar(init_container: Manifest) -> bool:
    """Return whether an init container stays beside the others instead of ending before them."""
    return init_container.get("restartPolicy") == "Always"


def volumes(pod: Manifest) -> list[Manifest]:
    return list(pod["spec"].get("volumes") or ())


def restart_policy(pod: Manifest) -> str:
    return str(pod["spec"].get("restartPolicy") or "Always")


def is_terminating(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def grace_seconds(pod: Manifest) -> float:
    """Return how long the pod may take to end: what its deletion says, else its spec."""
    asked = pod["metadata"].get("deletionGracePeriodSeconds")
    if asked is None:
        asked = pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    return float(asked)


def is_finished(pod: Manifest) -> bool:
    return (pod.get("status") or {}).get("phase") in FINISHED_PHASES


def conditions(pod: Manifest) -> dict[str, Manifest]:
    return {condition["type"]: condition for condition in (pod.get("status") or {}).get("conditions") or ()}


def is_ready(pod: Manifest) -> bool:
    return conditions(pod).get("Ready", {}).get("status") == "True"


def named_port(container: Manifest, port: int | str) -> int | None:
    """Return the number of a port that is given as a number or as the name of one of the container's ports."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    return None
