"""How a failed write shows in the status that planning made. Pure."""

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import CONDITION_PROGRESSING, CONDITION_READY, CONDITIONS

Status = Mapping[str, Any]


def with_failure(status: Status, live: Status, reason: str, message: str, generation: int, now: str) -> dict[str, Any]:
    """Return the status with Progressing False, and Ready's reason where it isn't True: what somebody has to mend.

    `live` is the status in the cluster: a condition that says the same as there keeps its time.
    """
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    shown = [CONDITION_PROGRESSING]
    if conditions.get(CONDITION_READY, {}).get("status") != "True":
        shown.append(CONDITION_READY)
    for name in shown:
        conditions[name] = {
            "type": name,
            "status": "False",
            "observedGeneration": generation,
            "lastTransitionTime": _since(live, name, now),
            "reason": reason,
            "message": message[:32_000],
        }
    order = {name: index for index, name in enumerate(CONDITIONS)}
    return {**status, "conditions": sorted(conditions.values(), key=lambda found: order.get(found["type"], len(order)))}


def _since(live: Status, name: str, now: str) -> str:
    for condition in live.get("conditions") or ():
        if condition.get("type") == name and condition.get("status") == "False":
            return str(condition["lastTransitionTime"])
    return now
