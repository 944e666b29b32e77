"""A pod's status from what the node knows of its containers: phase, conditions, container states."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pagefleet_local.node.pods import (
    Manifest,
    conditions,
    containers,
    init_containers,
    is_sidecar,
    is_terminating,
    name_of,
    restart_policy,
    uid_of,
)
from pagefleet_local.node.records import ContainerRecord, PodRecord, Running, State, Terminated, Waiting


@dataclass(frozen=True)
class Failure:
    """Why the pod as a whole has failed, whatever its containers say."""

    reason: str
    message: str


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_status(
    pod: Manifest,
    record: PodRecord,
    previous: Mapping[str, Manifest],
    now: float,
    *,
    failure: Failure | None = None,
    volumes_ready: bool = True,
    host_address: str = "127.0.0.1",
) -> Manifest:
    """Return the whole status. `previous` are the conditions written last: one that stays keeps its time."""
    phase = "Failed" if failure else pod_phase(pod, record)
    found = _conditions(pod, record, phase, volumes_ready)
    status: Manifest = {
        "phase": phase,
        "conditions": [_timed(condition, previous, now) for condition in found],
        "hostIP": host_address,
        "hostIPs": [{"ip": host_address}],
        "podIP": record.address,
        "podIPs": [{"ip": record.address}],
        "startTime": (pod.get("status") or {}).get("startTime") or timestamp(record.seen_at),
        "containerStatuses": [
            _container_status(c, record.uid, _shown(pod, record, c["name"])) for c in containers(pod)
        ],
        # null takes away what an earlier status said.
        "reason": failure.reason if failure else None,
        "message": failure.message if failure else None,
    }
    if generation := pod["metadata"].get("generation"):
        status["observedGeneration"] = generation
    if init_containers(pod):
        status["initContainerStatuses"] = [
            _container_status(c, record.uid, _shown(pod, record, c["name"]), init=not is_sidecar(c))
            for c in init_containers(pod)
        ]
    return status


def _shown(pod: Manifest, record: PodRecord, name: str) -> ContainerRecord:
    """Return the container's record as it is shown: while init containers run, those after them say so."""
    found, waiting = record.container(name), unfinished_init(pod, record)
    if waiting and name != waiting[0] and found == ContainerRecord(name):
        return ContainerRecord(name, Waiting("PodInitializing"))
    return found


def pod_phase(pod: Manifest, record: PodRecord) -> str:
    if is_terminating(pod) and _all_ended(pod, record):
        return "Succeeded" if all(_succeeded(record.container(c["name"])) for c in containers(pod)) else "Failed"
    if _failed_init(pod, record):
        return "Failed"
    if unfinished_init(pod, record):
        return "Pending"
    records = [record.container(c["name"]) for c in containers(pod)]
    if any(isinstance(r.state, Waiting) and r.last is None for r in records):
        return "Pending"
    sidecars = [record.container(c["name"]) for c in init_containers(pod) if is_sidecar(c)]
    if any(isinstance(r.state, Running) for r in [*records, *sidecars]) or restart_policy(pod) == "Always":
        return "Running"
    if all(_succeeded(r) for r in records):
        return "Succeeded"
    return "Failed" if restart_policy(pod) == "Never" else "Running"


def unfinished_init(pod: Manifest, record: PodRecord) -> list[str]:
    """Return the init containers that the others still wait for; none once any of the others has started."""
    if any(record.container(c["name"]).num_starts for c in containers(pod)):
        return []
    return [c["name"] for c in init_containers(pod) if not init_done(c, record.container(c["name"]))]


def init_done(container: Manifest, record: ContainerRecord) -> bool:
    """Return whether what comes after this init container may start: it succeeded, or as a sidecar it has started."""
    if is_sidecar(container):
        return record.started
    return _succeeded(record)


def _succeeded(record: ContainerRecord) -> bool:
    return isinstance(record.state, Terminated) and record.state.exit_code == 0


def _all_ended(pod: Manifest, record: PodRecord) -> bool:
    return all(isinstance(record.container(c["name"]).state, Terminated) for c in containers(pod))


def _failed_init(pod: Manifest, record: PodRecord) -> bool:
    states = [record.container(c["name"]).state for c in init_containers(pod) if not is_sidecar(c)]
    return restart_policy(pod) == "Never" and any(isinstance(s, Terminated) and s.exit_code for s in states)


def _conditions(pod: Manifest, record: PodRecord, phase: str, volumes_ready: bool) -> list[Manifest]:
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    waiting = unfinished_init(pod, record)
    initialized = _condition(
        "Initialized",
        not waiting or phase == "Succeeded",
        over if phase == "Succeeded" else "ContainersNotInitialized",
        f"containers with incomplete status: {_listed(waiting)}",
    )
    sidecars = [c for c in init_containers(pod) if is_sidecar(c)]
    unready = [c["name"] for c in [*sidecars, *containers(pod)] if not _is_ready(record.container(c["name"]))]
    message = "" if over else f"containers with unready status: {_listed(unready)}"
    all_ready = not unready and not over
    reason = over or "ContainersNotReady"
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed = [gate for gate in gates if conditions(pod).get(gate, {}).get("status") != "True"]
    ready = _condition("Ready", all_ready and not closed, reason, message)
    if all_ready and closed:
        ready |= {"reason": "ReadinessGatesNotReady", "message": f"readiness gates not met: {_listed(closed)}"}
    return [
        _condition("PodReadyToStartContainers", volumes_ready and phase not in ("Succeeded", "Failed"), None, ""),
        initialized,
        ready,
        _condition("ContainersReady", all_ready, reason, message),
        _condition("PodScheduled", True, None, ""),
    ]


def _is_ready(record: ContainerRecord) -> bool:
    return isinstance(record.state, Running) and record.ready


def _listed(names: Sequence[str]) -> str:
    return f"[{' '.join(names)}]"


def _condition(kind: str, holds: bool, reason: str | None, message: str) -> Manifest:
    if holds:
        # PodCompleted explains a true condition too.
        completed = reason if reason == "PodCompleted" else None
        return {"type": kind, "status": "True", "reason": completed, "message": None}
    return {"type": kind, "status": "False", "reason": reason, "message": message or None}


def _timed(condition: Manifest, previous: Mapping[str, Manifest], now: float) -> Manifest:
    before = previous.get(condition["type"], {})
    same = before.get("status") == condition["status"] and "lastTransitionTime" in before
    return condition | {"lastTransitionTime": before["lastTransitionTime"] if same else timestamp(now)}


def _container_status(container: Manifest, uid: str, record: ContainerRecord, init: bool = False) -> Manifest:
    identity = f"process://{uid}/{record.name}-{record.num_starts}"
    status: Manifest = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": container.get("image", "") if record.num_starts else "",
        "restartCount": record.num_restarts,
        "ready": _succeeded(record) if init else _is_ready(record),
        "started": isinstance(record.state, Running) and record.started,
        "state": _state(record.state, identity),
        "lastState": {},
    }
    if record.num_starts:
        status["containerID"] = identity
    if record.last:
        ended = record.num_starts - (0 if isinstance(record.state, Waiting) else 1)
        status["lastState"] = _state(record.last, f"process://{uid}/{record.name}-{ended}")
    return status


def _state(state: State, identity: str) -> Manifest:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at=started_at):
            return {"running": {"startedAt": timestamp(started_at)}}
        case Terminated():
            value = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": timestamp(state.started_at),
                "finishedAt": timestamp(state.finished_at),
                "containerID": identity,
            }
            return {"terminated": value | ({"message": state.message} if state.message else {})}


def status_patch(pod: Manifest, status: Manifest) -> Manifest:
    """Return the patch that writes the status, refused by the API where the name has another pod by now."""
    return {"metadata": {"uid": uid_of(pod)}, "status": status}


def by_type(found: Iterable[Manifest]) -> dict[str, Manifest]:
    return {condition["type"]: condition for condition in found}


def crash_message(container: str, pod: Manifest, delay_seconds: float) -> str:
    delay = (
        f"{int(delay_seconds // 60)}m{int(delay_seconds % 60)}s" if delay_seconds >= 60 else f"{int(delay_seconds)}s"
    )
    where = f"{name_of(pod)}_{pod['metadata']['namespace']}({uid_of(pod)})"
    return f"back-off {delay} restarting failed container={container} pod={where}"
