"""What the conditions say, judged on one view of the service.

Available: somebody answers, a replica of whatever generation and the router before it. Ready: a replica of this
generation does. Progressing is as a Deployment's: True while a roll comes forward and when it is complete, False where
somebody has to do something.
"""

from dataclasses import dataclass
from typing import Literal

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import (
    CONDITION_AVAILABLE,
    CONDITION_MODEL_FITS,
    CONDITION_MODEL_LOADED,
    CONDITION_PROGRESSING,
    CONDITION_READY,
    CONDITION_SCALING_ACTIVE,
    CONDITIONS,
)
from pagefleet_operator.fit import Fit
from pagefleet_operator.fleet import Fleet, first_trouble
from pagefleet_operator.observed import Manifest, Pod, Trouble
from pagefleet_operator.rollout import Roll, live_replicas
from pagefleet_operator.troubles import condition_of

# Reasons that come and go by themselves while a service starts or changes.
REASON_PENDING = "Pending"
REASON_STARTING = "Starting"
REASON_LOADING = "Loading"
REASON_ROLLING_OUT = "RollingOut"
REASON_COMPLETE = "Complete"
REASON_SERVING = "Serving"
REASON_LOADED = "Loaded"
REASON_STOPPED = "Stopped"
REASON_ROUTER_STARTING = "RouterStarting"
REASON_INVALID = "InvalidSpec"

_LOAD_PERCENT_STEP = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition, without its times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class View:
    """What conditions are judged on. `deployment` is the engine's, as it is in the cluster; `was_complete`: this
    generation's roll had ended when the status was last written."""

    spec: InferenceServiceSpec
    fit: Fit
    fleet: Fleet
    roll: Roll
    deployment: Manifest | None
    has_router: bool
    was_complete: bool


def judge(view: View) -> dict[str, Verdict]:
    """Return every condition."""
    available = _available(view)
    return {
        CONDITION_READY: _ready(view, available),
        CONDITION_AVAILABLE: available,
        CONDITION_MODEL_FITS: Verdict(view.fit.status, view.fit.reason, view.fit.message),
        CONDITION_MODEL_LOADED: _model_loaded(view),
        CONDITION_PROGRESSING: _progressing(view),
        CONDITION_SCALING_ACTIVE: _scaling_active(view.spec),
    }


def judge_invalid(refusal: str, serving: int) -> dict[str, Verdict]:
    """Return the conditions of a spec that can't be read: what runs goes on, nothing is changed."""
    unknown = Verdict("Unknown", REASON_INVALID, refusal)
    verdicts = dict.fromkeys(CONDITIONS, unknown)
    verdicts[CONDITION_READY] = verdicts[CONDITION_PROGRESSING] = Verdict("False", REASON_INVALID, refusal)
    if serving:
        verdicts[CONDITION_AVAILABLE] = Verdict("True", REASON_SERVING, f"{_count(serving)} of an older spec serve")
    return verdicts


def _available(view: View) -> Verdict:
    spec, fleet = view.spec, view.fleet
    if spec.replicas == 0:
        return Verdict("False", REASON_STOPPED, "spec.replicas is 0; Service and router stay")
    if not fleet.ready:
        return _why_nothing_is_ready(view)
    if view.has_router and not fleet.router_is_ready:
        trouble = first_trouble(fleet.routers)
        if trouble is not None:
            return Verdict("False", trouble.reason, f"the router isn't ready: {trouble.message}")
        return Verdict("False", REASON_ROUTER_STARTING, "replicas are ready, the router before them isn't yet")
    told = _ready_of(len(fleet.ready), spec.replicas)
    missing = first_trouble(fleet.engines)
    return Verdict("True", REASON_SERVING, told if missing is None else f"{told}; {missing.message}")


def _ready(view: View, available: Verdict) -> Verdict:
    if view.spec.replicas == 0:
        return available
    blocked = _blocked(view)
    if blocked is not None:
        return Verdict("False", blocked.reason, blocked.message)
    if available.status != "True":
        return available
    if view.fleet.current_ready:
        return Verdict("True", REASON_SERVING, available.message)
    trouble = first_trouble(view.fleet.current)
    if trouble is not None:
        return Verdict("False", trouble.reason, trouble.message)
    older = len(view.fleet.ready)
    return Verdict(
        "False",
        REASON_ROLLING_OUT,
        f"no replica of this generation is ready yet; {_count(older)} of an older one serve",
    )


def _blocked(view: View) -> Trouble | None:
    """Return why this spec gets no replicas whatever the cluster does."""
    return Trouble(view.fit.reason, view.fit.message) if view.fit.status == "False" else None


def _why_nothing_is_ready(view: View) -> Verdict:
    fleet = view.fleet
    trouble = _blocked(view) or first_trouble(fleet.engines) or _creation_failure(view.deployment)
    if trouble is None and not fleet.engines:
        trouble = first_trouble(fleet.finished)
    if trouble is not None:
        return Verdict("False", trouble.reason, trouble.message)
    if view.deployment is None:
        return Verdict("Unknown", REASON_PENDING, "the engine's Deployment is being made")
    if not fleet.engines:
        return Verdict("False", REASON_STARTING, "no replica exists yet")
    loading = _loading(fleet.engines)
    return loading or Verdict("False", REASON_STARTING, f"{fleet.engines[0].name} isn't ready yet")


def _creation_failure(deployment: Manifest | None) -> Trouble | None:
    """Return why the cluster makes no pods: a quota, a missing service account, an admission rule."""
    failure = condition_of((deployment or {}).get("status") or {}, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    return Trouble(failure.get("reason") or "ReplicaFailure", failure.get("message") or "pods can't be created")


def _loading(pods: tuple[Pod, ...]) -> Verdict | None:
    for pod in pods:
        if not pod.ready and pod.figures is not None and pod.figures.load_stage:
            told = f"{pod.name} loads the model: {pod.figures.load_stage}"
            return Verdict("False", REASON_LOADING, told + _percent(pod.figures.load_fraction))
    return None


def _percent(fraction: float | None) -> str:
    """Return the progress in steps: each one is a write of the status."""
    if fraction is None:
        return ""
    return f", {int(fraction * 100) // _LOAD_PERCENT_STEP * _LOAD_PERCENT_STEP} %"


def _model_loaded(view: View) -> Verdict:
    fleet = view.fleet
    if fleet.current_ready:
        return Verdict("True", REASON_LOADED, "a replica of this generation has produced a token")
    if view.spec.replicas == 0:
        return Verdict("Unknown", REASON_STOPPED, "there is no replica to load it")
    blocked = _blocked(view)
    if blocked is not None:
        return Verdict("Unknown", blocked.reason, "no replica loads it: see Ready")
    trouble = first_trouble(fleet.current)
    if trouble is not None and trouble.reason in ("CrashLoopBackOff", "OOMKilled"):
        return Verdict("False", "LoadFailed", trouble.message)
    if trouble is not None:
        return Verdict("Unknown", trouble.reason, trouble.message)
    return _loading(fleet.current) or Verdict("Unknown", REASON_PENDING, "no replica has begun to load it")


def _progressing(view: View) -> Verdict:
    blocked = _blocked(view)
    if blocked is not None:
        return Verdict("False", blocked.reason, blocked.message)
    deployment, fleet, wanted = view.deployment, view.fleet, view.spec.replicas
    if deployment is None:
        return Verdict("Unknown", REASON_PENDING, "the engine's Deployment is being made")
    told = _ready_of(len(fleet.current_ready), wanted)
    why = _why_some_are_missing(view)
    # Before more replicas are asked of the Deployment, all that it has may be ready.
    if view.was_complete or (view.roll.is_over and live_replicas(deployment) >= wanted):
        if len(fleet.current_ready) >= wanted:
            return Verdict("True", REASON_COMPLETE, f"{_count(wanted)} of this generation")
        return Verdict("True", REASON_COMPLETE, f"the roll is complete; {told}{why}")
    deadline = condition_of(deployment.get("status") or {}, "Progressing")
    if deadline.get("reason") == "ProgressDeadlineExceeded":
        return Verdict("False", "DeadlineExceeded", f"the roll makes no progress{why}")
    older = f"; {_count(len(fleet.older))} of an older one left" if fleet.older else ""
    return Verdict("True", REASON_ROLLING_OUT, f"{told} in this generation{older}{why}")


def _why_some_are_missing(view: View) -> str:
    """Return what keeps a replica of this generation from coming up, to be appended; empty where nothing is known.
    How far one has loaded is left out: each step would be a write of the status."""
    trouble = first_trouble(view.fleet.current) or _creation_failure(view.deployment)
    if trouble is not None:
        return f"; {trouble.message}"
    waiting = next((pod for pod in view.fleet.current if not pod.ready), None)
    return f"; {waiting.name} isn't ready yet" if waiting else ""


def _scaling_active(spec: InferenceServiceSpec) -> Verdict:
    if spec.autoscaling is None:
        told = "spec.autoscaling is absent: nothing scales by itself; `kubectl scale` does"
        return Verdict("False", "NotConfigured", told)
    class_ = spec.autoscaling.class_
    if class_ == "External":
        return Verdict("Unknown", "External", "somebody else writes the scale subresource; it is followed as it is")
    told = f"autoscaling.class is {class_}; this version scales nothing by itself, it follows the scale subresource"
    return Verdict("False", "NotSupported", told)


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _ready_of(ready: int, wanted: int) -> str:
    return f"{ready} of {_count(wanted)} {'is' if ready == 1 else 'are'} ready"
