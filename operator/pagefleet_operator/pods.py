"""A pod's manifest as planning sees it. Knows nothing of services; `troubles` says why a pod doesn't come up."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pagefleet_contract.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_DRAIN,
    ANNOTATION_TEMPLATE_HASH,
    LABEL_COMPONENT,
)
from pagefleet_operator.observed import Manifest, Pod
from pagefleet_operator.quantities import quantity_value
from pagefleet_operator.troubles import condition_of, trouble_of


def pod_from_manifest(manifest: Manifest, events: Sequence[Manifest] = ()) -> Pod:
    """Return the pod without its figures. `events` are those about it; they say why a container isn't made."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        component=(metadata.get("labels") or {}).get(LABEL_COMPONENT, ""),
        ip=status.get("podIP") or None,
        template_hash=annotations.get(ANNOTATION_TEMPLATE_HASH),
        created_seconds=_seconds(metadata.get("creationTimestamp")),
        scheduled=_holds(status, "PodScheduled") or bool((manifest.get("spec") or {}).get("nodeName")),
        # The router sends nothing to a pod that is marked.
        ready=_holds(status, "Ready") and ANNOTATION_DRAIN not in annotations,
        deleting=bool(metadata.get("deletionTimestamp")),
        restarts=sum(int(container.get("restartCount") or 0) for container in status.get("containerStatuses") or ()),
        trouble=trouble_of(manifest, events),
        deletion_cost=_whole(annotations.get(ANNOTATION_DELETION_COST)),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        requests=_requests(manifest.get("spec") or {}),
    )


def _holds(status: Mapping[str, Any], condition: str) -> bool:
    return condition_of(status, condition).get("status") == "True"


def _seconds(timestamp: str | None) -> float:
    return 0.0 if not timestamp else datetime.fromisoformat(timestamp).timestamp()


def _whole(text: str | None) -> int | None:
    """Return the number, or None for what somebody else wrote there and is none."""
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _requests(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return what the containers ask for together; limits count where nothing else is asked for."""
    found: dict[str, str] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in asked.items():
            found[name] = str(amount) if name not in found else _sum(found[name], str(amount))
    return found


def _sum(one: str, other: str) -> str:
    values = (quantity_value(one), quantity_value(other))
    return str(sum(value for value in values if value is not None))
