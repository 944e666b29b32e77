"""Whether a service is as its spec wants it, and what it waits for: read from its status, as a value."""

from dataclasses import dataclass
from typing import Any

from pagefleet_cli.printing import counted
from pagefleet_contract.names import CONDITION_MODEL_FITS, CONDITION_PROGRESSING, CONDITION_READY

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Readiness:
    """`refused` is true where waiting is of no use: only a change of the spec helps."""

    is_ready: bool
    refused: bool
    text: str


def readiness(service: Object) -> Readiness:
    """Judge the service by what stands in its status for its newest spec. Ready in Kubernetes' sense, it may still lack
    replicas or have older ones; here it is ready when all that are asked for run the newest spec, and no others."""
    generation = service["metadata"]["generation"]
    current = {
        condition["type"]: condition
        for condition in service.get("status", {}).get("conditions", [])
        if condition.get("observedGeneration") == generation
    }
    fits, ready = current.get(CONDITION_MODEL_FITS), current.get(CONDITION_READY)
    if fits and fits["status"] == "False":
        return Readiness(False, True, _said(fits))
    if ready is None:
        return Readiness(False, False, "the operator hasn't looked at it yet")
    num_wanted, status = service["spec"]["replicas"], service["status"]
    if ready["status"] != "True" and num_wanted:  # one without replicas is never Ready, and as its spec wants it
        return Readiness(False, False, _said(ready))
    counts = {name: status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")}
    if set(counts.values()) == {num_wanted}:
        return Readiness(True, False, _said(ready))
    progressing = current.get(CONDITION_PROGRESSING)
    lacking = (
        f"{counts['readyReplicas']} of {counted(num_wanted, 'replica')} {'is' if num_wanted == 1 else 'are'} ready"
    )
    return Readiness(False, False, progressing["message"] if progressing else lacking)


def _said(condition: Object) -> str:
    return f"{condition['reason']}: {condition['message']}" if condition.get("message") else str(condition["reason"])
