"""What an answer of the API server means, in one table."""

from typing import Any

import pytest

from pagefleet_operator.faults import AbsentFault, Fault, LeavingFault, RefusedFault, TemporaryFault, fault_of

_TERMINATING = {"reason": "Forbidden", "details": {"causes": [{"reason": "NamespaceTerminating"}]}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"reason": "BadRequest"}, RefusedFault),
        (401, {"reason": "Unauthorized"}, TemporaryFault),
        (403, {"reason": "Forbidden"}, RefusedFault),
        (403, _TERMINATING, LeavingFault),
        (404, {"reason": "NotFound"}, AbsentFault),
        (409, {"reason": "Conflict"}, TemporaryFault),
        (409, {"reason": "AlreadyExists"}, TemporaryFault),
        (410, {"reason": "Expired"}, TemporaryFault),
        (413, {}, RefusedFault),
        (422, {"reason": "Invalid"}, RefusedFault),
        (429, {"reason": "TooManyRequests"}, TemporaryFault),
        (500, {"reason": "InternalError"}, TemporaryFault),
        (500, {"message": "failed to create typed patch object (x): .spec.y: field not declared"}, RefusedFault),
        (503, {}, TemporaryFault),
        (504, {"reason": "Timeout"}, TemporaryFault),
    ],
)
def test_each_status_means_one_thing(status: int, body: dict[str, Any], kind: type[Fault]) -> None:
    assert type(fault_of(status, body, "PATCH /x")) is kind


def test_the_message_says_what_was_asked_and_what_was_answered() -> None:
    fault = fault_of(422, {"reason": "Invalid", "message": "spec.x: bad"}, "PATCH /apis/apps/v1/x")
    assert (fault.reason, fault.message) == ("Invalid", "PATCH /apis/apps/v1/x: spec.x: bad")


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after_is_kept_where_it_is_a_number(header: str | None, seconds: float | None) -> None:
    assert fault_of(429, {}, "GET /x", header).retry_after_seconds == seconds
