"""What went wrong with a request to the cluster or a replica, and what follows from it. The only place that maps them.

Fault
├── TemporaryFault   the same again may work: conflict, throttling, server error, no answer
├── RefusedFault     somebody has to change something: right missing, manifest refused
│   └── NameTakenFault   an object that isn't ours bears a child's name
├── AbsentFault      the object isn't there
└── LeavingFault     the namespace is being deleted: nothing can or need be done
"""

from collections.abc import Mapping
from typing import Any


class Fault(Exception):
    """`reason` is a CamelCase word for conditions and events; the message says what was found."""

    def __init__(self, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class TemporaryFault(Fault):
    pass


class RefusedFault(Fault):
    pass


class NameTakenFault(RefusedFault):
    def __init__(self, message: str) -> None:
        super().__init__("NameTaken", message)


class AbsentFault(Fault):
    pass


class LeavingFault(Fault):
    pass


class NotLeading(Exception):
    """This operator may not write: it holds no lease, or not for certain. Another one may be at work."""


_TEMPORARY_STATUS = (401, 408, 409, 410, 425, 429)
# Server-side apply answers 500 to a manifest with unknown or mistyped fields.
_NOT_OF_THE_SCHEMA = "failed to create typed patch object"


def fault_of(status: int, body: Mapping[str, Any], what: str, retry_after: str | None = None) -> Fault:
    """Return what an answer of the API server means. `what` is the request, for people."""
    reason = str(body.get("reason") or "") or f"Status{status}"
    message = f"{what}: {body.get('message') or f'status {status}'}"
    if _namespace_is_leaving(body):
        return LeavingFault("NamespaceTerminating", message)
    if status == 404:
        return AbsentFault("NotFound", message)
    if status == 500 and str(body.get("message") or "").startswith(_NOT_OF_THE_SCHEMA):
        return RefusedFault("Invalid", message)
    if status in _TEMPORARY_STATUS or status >= 500:
        return TemporaryFault(reason, message, _seconds(retry_after))
    return RefusedFault(reason, message)


def _namespace_is_leaving(body: Mapping[str, Any]) -> bool:
    causes = (body.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def _seconds(retry_after: str | None) -> float | None:
    try:
        return None if retry_after is None else max(0.0, float(retry_after))
    except ValueError:  # a date; the backoff of the queue is as good
        return None
