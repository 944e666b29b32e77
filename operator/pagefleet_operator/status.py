"""The status to write, and whether it is worth a write. Times change only with what they belong to."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pagefleet_contract.names import COMPONENT_ENGINE, CONDITIONS, HTTP_PORT, service_selector
from pagefleet_contract.status import Condition, Effective, InferenceServiceStatus, KVStatus, RolloutStatus
from pagefleet_operator.conditions import REASON_LOADING, Verdict
from pagefleet_operator.manifests.metadata import Owner, without_absent
from pagefleet_operator.observed import Manifest

_MESSAGE_CHARACTERS = 4096
_HOLDING_CHARACTERS = 2048  # what the schema takes
_USED_PERCENT_STEP = 5
_WITH_DIGITS = re.compile(r"\S*\d\S*")
# What a roll waits for where a pod of it has trouble ends with the trouble's reason.
_HOLDING_REASON = re.compile(r"\((\w+)\)$")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the status says, but for its times."""

    owner: Owner
    generation: int
    verdicts: Mapping[str, Verdict]
    replicas: int
    updated_replicas: int
    ready_replicas: int
    wanted_replicas: int | None  # None where the spec can't be read
    model: str | None
    effective: Effective | None
    kv: KVStatus | None
    holding: str


def status_document(facts: Facts, old: Manifest, now: datetime) -> dict[str, Any]:
    """Return the whole status. `old` is the one in the cluster; its times stay where nothing has changed."""
    owner = facts.owner
    status = InferenceServiceStatus(
        observed_generation=facts.generation,
        replicas=facts.replicas,
        updated_replicas=facts.updated_replicas,
        ready_replicas=facts.ready_replicas,
        ready=None if facts.wanted_replicas is None else f"{facts.ready_replicas}/{facts.wanted_replicas}",
        selector=",".join(f"{key}={value}" for key, value in service_selector(owner.name, COMPONENT_ENGINE).items()),
        url=f"http://{owner.name}.{owner.namespace}.svc:{HTTP_PORT}",
        model=facts.model,
        effective=facts.effective,
        kv=facts.kv,
        rollout=_rollout(facts.holding, old, now),
        conditions=_conditions(facts, old, now),
    )
    document: dict[str, Any] = without_absent(status.model_dump(mode="json", by_alias=True, exclude_none=True))
    return document


def conditions_by_type(status: Manifest) -> dict[str, Mapping[str, Any]]:
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


@dataclass(frozen=True, slots=True)
class Write:
    """Whether to write, and else after how many seconds it would be due; None where nothing has to be."""

    status: Mapping[str, Any] | None
    due_in_seconds: float | None = None


def worth_writing(
    new: Mapping[str, Any], old: Manifest, written_seconds: float | None, now: float, every: float
) -> Write:
    """Return the status if it says something new. Once in `every` seconds is enough for a share of the KV blocks that
    moved by less than five points, and for other numbers in the same sentences: a container that ends again and again
    may tell each time how much memory was left."""
    now_said, said = _significant(new), _significant(old)
    if _without_numbers(now_said) != _without_numbers(said):
        return Write(new)
    used, was = ((status.get("kv") or {}).get("usedPercent") for status in (new, old))
    if used == was and now_said == said:
        return Write(None)
    if used != was and (used is None or was is None or abs(used - was) >= _USED_PERCENT_STEP):
        return Write(new)
    due_in = 0.0 if written_seconds is None else written_seconds + every - now
    return Write(new) if due_in <= 0 else Write(None, due_in)


def timestamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rollout(holding: str, old: Manifest, now: datetime) -> RolloutStatus:
    was, holding = old.get("rollout") or {}, holding[:_HOLDING_CHARACTERS]
    if not holding:
        return RolloutStatus()
    since = was.get("since") if was.get("holding") == holding else None
    return RolloutStatus(holding=holding, since=since or timestamp(now))


def _conditions(facts: Facts, old: Manifest, now: datetime) -> list[Condition]:
    before = conditions_by_type(old)
    found = []
    for kind in CONDITIONS:
        verdict, was = facts.verdicts[kind], before.get(kind) or {}
        since = was.get("lastTransitionTime") if was.get("status") == verdict.status else None
        found.append(
            Condition(
                type=kind,
                status=verdict.status,
                observed_generation=facts.generation,
                last_transition_time=since or timestamp(now),
                reason=verdict.reason,
                message=verdict.message[:_MESSAGE_CHARACTERS],
            )
        )
    return found


def _significant(status: Manifest) -> dict[str, Any]:
    """Return what is compared: without what is empty (the API server adds defaults), without other people's
    conditions, and without the share that moves all the time."""
    conditions = {kind: value for kind, value in conditions_by_type(status).items() if kind in CONDITIONS}
    kv = {name: value for name, value in (status.get("kv") or {}).items() if name != "usedPercent"}
    found: dict[str, Any] = _without_empty({**status, "conditions": conditions, "kv": kv})
    return found


def _without_numbers(significant: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is left when messages have no numbers, but where they tell how far a load is. How many replicas there
    are stands beside the messages, too; a trouble that holds a roll has a condition of its own."""
    conditions = {
        kind: value
        if value.get("reason") == REASON_LOADING
        else {**value, "message": _WITH_DIGITS.sub("", value.get("message", ""))}
        for kind, value in significant.get("conditions", {}).items()
    }
    reason = _HOLDING_REASON.search(significant.get("rollout", {}).get("holding", ""))
    return {**significant, "conditions": conditions, "rollout": reason[1] if reason else significant.get("rollout")}


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
