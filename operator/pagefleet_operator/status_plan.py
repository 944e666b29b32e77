"""From a view of the service to the status, and whether to write it now, later or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pagefleet_contract.names import CONDITION_MODEL_FITS, CONDITION_READY
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.conditions import (
    REASON_LOADING,
    REASON_PENDING,
    REASON_ROUTER_STARTING,
    REASON_STARTING,
    Verdict,
    View,
    judge,
    judge_invalid,
)
from pagefleet_operator.fleet import Fleet
from pagefleet_operator.generation import Generation
from pagefleet_operator.manifests.metadata import Owner
from pagefleet_operator.observed import Manifest, Observed
from pagefleet_operator.replica_figures import effective, known_effective, kv_status, missing_apis
from pagefleet_operator.status import Facts, conditions_by_type, status_document, worth_writing

# A service that starts well has one write, when it is ready. One that takes longer says so after this time, and sooner
# where there is progress to be told.
SETTLE_SECONDS = 20.0
SETTLE_LOADING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class StatusPlan:
    """`document` is None where nothing is to be written now. `before` are the conditions that were written."""

    document: Mapping[str, Any] | None
    verdicts: Mapping[str, Verdict]
    before: Mapping[str, Mapping[str, Any]]
    again_in_seconds: float | None


def plan_status(
    observed: Observed, generation: Generation, view: View, settings: OperatorSettings, now: datetime
) -> StatusPlan:
    """Return the status of a spec that can be read."""
    old = observed.service.status
    verdicts, ready = judge(view), view.fleet.current_ready
    missing = missing_apis(
        pod_monitor_wanted=settings.pod_monitors == "Enabled", pod_monitor_there=observed.apis.pod_monitors
    )
    in_force = effective(view.spec, generation, ready, missing, old.get("effective") or {})
    facts = Facts(
        **_counts(observed, view.fleet),
        verdicts=verdicts,
        model=generation.config.model.served_name,
        effective=in_force,
        kv=kv_status(ready, old.get("kv") or {}),
        holding=view.roll.holding,
    )
    waits = _settles_in(verdicts, view, old, now)
    return _written(observed, facts, settings, now, waits)


def plan_invalid_status(observed: Observed, fleet: Fleet, settings: OperatorSettings, now: datetime) -> StatusPlan:
    """Return the status of a spec that can't be read: what was in force stays in force."""
    service = observed.service
    old = service.status
    in_force = old.get("effective")
    facts = Facts(
        **_counts(observed, fleet),
        verdicts=judge_invalid(service.refusal, len(fleet.ready)),
        model=old.get("model"),
        effective=None if in_force is None else known_effective(in_force),
        kv=kv_status(fleet.current_ready, old.get("kv") or {}),
        holding="",
    )
    return _written(observed, facts, settings, now, settles_in_seconds=None)


def _counts(observed: Observed, fleet: Fleet) -> dict[str, Any]:
    service = observed.service
    return {
        "owner": Owner(service.name, service.namespace, service.uid),
        "generation": service.generation,
        "replicas": len(fleet.engines),
        "updated_replicas": len(fleet.current),
        "ready_replicas": len(fleet.ready),
        "wanted_replicas": None if service.spec is None else service.spec.replicas,
    }


def _written(
    observed: Observed, facts: Facts, settings: OperatorSettings, now: datetime, settles_in_seconds: float | None
) -> StatusPlan:
    old = observed.service.status
    before = conditions_by_type(old)
    if settles_in_seconds is not None:
        return StatusPlan(None, facts.verdicts, before, settles_in_seconds)
    document = status_document(facts, old, now)
    write = worth_writing(
        document, old, observed.status_written_seconds, now.timestamp(), float(settings.status_seconds)
    )
    return StatusPlan(write.status, facts.verdicts, before, write.due_in_seconds)


def _settles_in(verdicts: Mapping[str, Verdict], view: View, old: Manifest, now: datetime) -> float | None:
    """Return for how long the first status of a service that starts well may wait; None where it must not."""
    ready = verdicts[CONDITION_READY]
    starting = ready.reason in (REASON_PENDING, REASON_STARTING, REASON_LOADING, REASON_ROUTER_STARTING)
    if old.get("conditions") or not (starting or _figures_are_to_come(view.fleet)):
        return None
    if verdicts[CONDITION_MODEL_FITS].status == "False" or view.roll.holding:
        return None
    patience = SETTLE_SECONDS if starting and ready.reason != REASON_LOADING else SETTLE_LOADING_SECONDS
    if view.deployment is None:
        return patience
    created = view.deployment["metadata"].get("creationTimestamp")
    if not created:
        return None
    left = datetime.fromisoformat(created).timestamp() + patience - now.timestamp()
    return left if left > 0 else None


def _figures_are_to_come(fleet: Fleet) -> bool:
    """Return whether a ready replica wasn't asked for its figures yet."""
    return any(pod.figures is None and not pod.figures_fault for pod in fleet.current_ready)
