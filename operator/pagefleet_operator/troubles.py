"""Why a pod doesn't come up, from its status and the events about it, in Kubernetes' own words."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_contract.names import ANNOTATION_DRAIN, REASON_NODE_STOPPED
from pagefleet_operator.last_words import last_words
from pagefleet_operator.observed import Manifest, Trouble

# A container that waits for one of these is on its way.
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing", "")
_PULL_FAILED, _PULL_BACK_OFF = "ErrImagePull", "ImagePullBackOff"
_SUSPICIOUS_ENDS = 2
# A container that its node has ended starts again with the node: the local fleet's, and a kubelet's after a reboot.
_ENDS_OF_THE_NODE = (REASON_NODE_STOPPED, "ContainerStatusUnknown", "Unknown")
_MESSAGE_CHARACTERS = 2000


def trouble_of(pod: Manifest, events: Sequence[Manifest] = ()) -> Trouble | None:
    """Return what keeps the pod from coming up; None where nothing does, or nothing that is known yet."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    if status.get("phase") == "Failed":
        return _failed(status, containers)
    if condition_of(status, "Ready").get("status") == "True":
        marked = ANNOTATION_DRAIN in (pod["metadata"].get("annotations") or {})
        return Trouble("Draining", f"it is marked by {ANNOTATION_DRAIN} and gets no new requests") if marked else None
    scheduling = condition_of(status, "PodScheduled")
    if scheduling.get("status") == "False":
        return _trouble(scheduling.get("reason") or "Unschedulable", scheduling.get("message"))
    for container in containers:
        trouble = _container_trouble(container)
        if trouble is not None:
            return trouble
    is_started = any("running" in (container.get("state") or {}) for container in containers)
    return None if is_started else _newest_warning(events)


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type; empty where there is none."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}


def _failed(status: Mapping[str, Any], containers: Sequence[Mapping[str, Any]]) -> Trouble:
    if status.get("reason"):
        return _trouble(status["reason"], status.get("message"))
    for container in containers:
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return _ended(container, ended, "Failed")
    return _trouble("Failed", status.get("message") or "the pod has failed and nothing says why")


def _container_trouble(container: Mapping[str, Any]) -> Trouble | None:
    state = container.get("state") or {}
    waiting, ended, before = state.get("waiting"), _own_end(state), _own_end(container.get("lastState") or {})
    if waiting is not None:
        reason = waiting.get("reason") or ""
        if before and reason in (*_ON_ITS_WAY, "CrashLoopBackOff"):
            return _ended(container, before, "CrashLoopBackOff")
        if reason == _PULL_BACK_OFF:
            return _pull_back_off(waiting.get("message") or "")
        if reason not in _ON_ITS_WAY:
            return _trouble(reason, waiting.get("message"))
        return _trouble("ContainerCreating", waiting["message"]) if waiting.get("message") else None
    if ended is not None:
        return _ended(container, ended, "CrashLoopBackOff") if ended.get("exitCode") else None
    # It runs again and isn't ready: what ended it last time may do so again. An end without an error is one that was
    # asked for, until it comes again.
    again = before and (before.get("exitCode") or container.get("restartCount", 0) >= _SUSPICIOUS_ENDS)
    return _ended(container, before, "CrashLoopBackOff") if before and again else None


def _own_end(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how the container has ended, unless its node ended it: that says nothing of the next start."""
    ended: Mapping[str, Any] | None = state.get("terminated")
    return None if ended and ended.get("reason") in _ENDS_OF_THE_NODE else ended


def _pull_back_off(message: str) -> Trouble:
    """Return what the failed pull said: a node says the one and the other in turns, and it is one trouble."""
    _, found, cause = message.partition(f": {_PULL_FAILED}: ")
    return _trouble(_PULL_FAILED, cause) if found else _trouble(_PULL_BACK_OFF, message)


def _ended(container: Mapping[str, Any], ended: Mapping[str, Any], reason: str) -> Trouble:
    """Return the trouble of a container that has ended; its last words say most."""
    code, words = ended.get("exitCode"), last_words(ended.get("message") or "")
    if ended.get("reason") == "OOMKilled":
        told = f"container {container.get('name')} took more memory than its limit and was killed"
        return _trouble("OOMKilled", f"{told}; {words}" if words else f"{told}; raise the limit")
    return _trouble(reason, words or f"container {container.get('name')} ended with exit code {code} and said nothing")


def _newest_warning(events: Sequence[Manifest]) -> Trouble | None:
    """Return what the node last complained about: a volume, a sandbox, a missing ConfigMap."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return None
    newest = max(warnings, key=_event_time)
    return _trouble(newest.get("reason") or "Warning", newest.get("message") or newest.get("note"))


def _event_time(event: Manifest) -> str:
    """Return when the event was last seen; timestamps of one form sort like the times."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), (event.get("metadata") or {}).get("creationTimestamp") or ""))


def _trouble(reason: str, message: str | None) -> Trouble:
    text = " ".join((message or "").split())
    return Trouble(reason, text if len(text) <= _MESSAGE_CHARACTERS else f"…{text[1 - _MESSAGE_CHARACTERS :]}")
