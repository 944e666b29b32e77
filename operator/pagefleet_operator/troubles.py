"""Why a pod doesn't come up, from its status and the events about it, in Kubernetes' own words."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_contract.names import ANNOTATION_DRAIN, COMPONENT_ENGINE, REASON_NODE_STOPPED
from pagefleet_operator.last_words import error_words, last_words
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
    containers = [{**one, "limits": _limits(pod, one)} for one in containers]
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


def _limits(pod: Manifest, container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the pod's manifest lets this container take at most."""
    for asked in (pod.get("spec") or {}).get("containers") or ():
        if asked.get("name") == container.get("name"):
            limits: Mapping[str, Any] = (asked.get("resources") or {}).get("limits") or {}
            return limits
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
    name, said = container.get("name"), ended.get("message") or ""
    if ended.get("reason") == "OOMKilled":
        return _trouble("OOMKilled", _took_too_much(name, container["limits"], error_words(said)))
    told = last_words(said) or f"container {name} ended with exit code {ended.get('exitCode')} and said nothing"
    return _trouble(reason, told)


def _took_too_much(name: str | None, limits: Mapping[str, Any], words: str) -> str:
    limit = f" of {limits['memory']}" if "memory" in limits else ""
    # It is killed unasked: of what it said before only an error may have to do with it.
    last = f" (its last words: {words})" if words else ""
    return f"container {name} took more memory than its limit{limit} and was killed; {_more_memory(name, limits)}{last}"


def _more_memory(name: str | None, limits: Mapping[str, Any]) -> str:
    if name != COMPONENT_ENGINE:
        return "raise the limit"
    in_the_template = "podTemplate.resources.limits.memory"
    on_a_cpu = set(limits) <= {"cpu", "memory"}
    return f"raise accelerator.memory (or {in_the_template}, if set)" if on_a_cpu else f"raise {in_the_template}"


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
