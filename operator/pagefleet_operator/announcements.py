"""The events on the resource: only where something has turned, against what the status said before."""

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract.names import CONDITION_AVAILABLE, CONDITION_MODEL_FITS, CONDITION_PROGRESSING
from pagefleet_operator.actions import Announcement
from pagefleet_operator.conditions import (
    REASON_COMPLETE,
    REASON_LOADING,
    REASON_PENDING,
    REASON_ROLLING_OUT,
    REASON_ROUTER_STARTING,
    REASON_STARTING,
    REASON_STOPPED,
    Verdict,
)

# A start is no news, and neither is its end.
_UNEVENTFUL = (REASON_PENDING, REASON_STARTING, REASON_LOADING, REASON_ROUTER_STARTING, REASON_STOPPED)


def announcements(verdicts: Mapping[str, Verdict], before: Mapping[str, Mapping[str, Any]]) -> Iterator[Announcement]:
    """Yield what turned. `before` are the written conditions by type."""
    for kind in (CONDITION_AVAILABLE, CONDITION_MODEL_FITS, CONDITION_PROGRESSING):
        verdict, was = verdicts[kind], before.get(kind) or {}
        if verdict.status == "False" and was.get("reason") != verdict.reason and verdict.reason not in _UNEVENTFUL:
            if kind == CONDITION_AVAILABLE or not _said_by_available(verdict, verdicts):
                yield Announcement("Warning", verdict.reason, verdict.message)
        elif kind == CONDITION_AVAILABLE and _has_recovered(verdict, was):
            yield Announcement("Normal", "Recovered", verdict.message)
        elif kind == CONDITION_PROGRESSING and _roll_has_ended(verdict, was) and _served(before):
            yield Announcement("Normal", verdict.reason, f"all that shall be there are: {verdict.message}")


def _said_by_available(verdict: Verdict, verdicts: Mapping[str, Verdict]) -> bool:
    """One fault turns several conditions; it is told once."""
    available = verdicts[CONDITION_AVAILABLE]
    return available.status == "False" and available.reason == verdict.reason


def _has_recovered(verdict: Verdict, was: Mapping[str, Any]) -> bool:
    return verdict.status == "True" and was.get("status") == "False" and was.get("reason") not in _UNEVENTFUL


def _roll_has_ended(verdict: Verdict, was: Mapping[str, Any]) -> bool:
    return verdict.reason == REASON_COMPLETE and was.get("reason") == REASON_ROLLING_OUT


def _served(before: Mapping[str, Mapping[str, Any]]) -> bool:
    return (before.get(CONDITION_AVAILABLE) or {}).get("status") == "True"
