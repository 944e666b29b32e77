"""Whether a service is ready, and what it waits for: read from its conditions, as a value."""

from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import CONDITION_MODEL_FITS, CONDITION_READY

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Readiness:
    """`refused` is true where waiting is of no use: only a change of the spec helps."""

    is_ready: bool
    refused: bool
    text: str


def readiness(service: Object) -> Readiness:
    """Judge the service by the conditions that stand for the spec that is in force."""
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
    return Readiness(ready["status"] == "True", False, _said(ready))


def _said(condition: Object) -> str:
    return f"{condition['reason']}: {condition['message']}" if condition.get("message") else str(condition["reason"])
