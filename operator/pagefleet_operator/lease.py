"""Who leads: what a Lease says, and what follows for one operator. Pure; only how long nothing has changed counts, as
the clocks of two machines differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the Lease says. `holder` is empty where nobody leads."""

    holder: str
    duration_seconds: int
    transitions: int
    version: str


@dataclass(frozen=True, slots=True)
class Terms:
    """One operator's name, and how long a Lease lasts."""

    holder: str
    seconds: int

    @property
    def interval_seconds(self) -> float:
        return self.seconds / 3

    @property
    def trusted_seconds(self) -> float:
        """How long after a renewal began its sender may write: others wait longer, by the time that a request takes."""
        return self.seconds * 2 / 3


Move = Literal["renew", "take", "wait"]


def record_of(manifest: Mapping[str, Any]) -> LeaseRecord:
    spec = manifest.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=spec.get("leaseDurationSeconds") or 0,
        transitions=spec.get("leaseTransitions") or 0,
        version=manifest["metadata"]["resourceVersion"],
    )


def next_move(record: LeaseRecord, terms: Terms, unchanged_seconds: float) -> Move:
    """Return what to do. A process that was restarted under the same name goes on at once."""
    if record.holder == terms.holder:
        return "renew"
    if not record.holder or unchanged_seconds > max(record.duration_seconds, terms.seconds):
        return "take"
    return "wait"


def patch_for(move: Literal["renew", "take"], record: LeaseRecord, terms: Terms, now: datetime) -> dict[str, Any]:
    """Return the merge patch; it holds only while nobody else has written."""
    spec: dict[str, Any] = {"renewTime": _micro_time(now), "leaseDurationSeconds": terms.seconds}
    if move == "take":
        spec |= {
            "holderIdentity": terms.holder,
            "acquireTime": _micro_time(now),
            "leaseTransitions": record.transitions + 1,
        }
    return {"metadata": {"resourceVersion": record.version}, "spec": spec}


def release_patch(record: LeaseRecord) -> dict[str, Any]:
    """Return the patch by which a leader that ends lets the next one in at once."""
    return {"metadata": {"resourceVersion": record.version}, "spec": {"holderIdentity": None}}


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
