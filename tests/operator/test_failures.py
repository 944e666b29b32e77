"""A failed write in the status."""

from typing import Any

from pagefleet_operator.failures import with_failure

OLD, NOW = "2026-11-29T10:00:00Z", "2026-11-29T12:00:00Z"


def _condition(kind: str, status: str, reason: str = "Fine", since: str = OLD) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "observedGeneration": 2,
        "lastTransitionTime": since,
        "reason": reason,
        "message": "",
    }


def _by_type(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in status["conditions"]}


def test_progressing_says_what_is_in_the_way_and_a_serving_service_stays_ready() -> None:
    planned = {"replicas": 1, "conditions": [_condition("Ready", "True"), _condition("Progressing", "True")]}
    shown = with_failure(planned, planned, "Invalid", "spec.x: bad", 3, NOW)
    found = _by_type(shown)
    assert found["Ready"]["status"] == "True"
    assert (found["Progressing"]["reason"], found["Progressing"]["message"]) == ("Invalid", "spec.x: bad")
    assert (found["Progressing"]["lastTransitionTime"], found["Progressing"]["observedGeneration"]) == (NOW, 3)
    assert shown["replicas"] == 1


def test_a_service_that_is_not_ready_says_the_same_there() -> None:
    planned = {"conditions": [_condition("Ready", "False", "Starting"), _condition("ModelFits", "True")]}
    found = _by_type(with_failure(planned, planned, "NameTaken", "x is there", 2, NOW))
    assert (found["Ready"]["reason"], found["Ready"]["lastTransitionTime"]) == ("NameTaken", OLD)
    assert found["ModelFits"]["status"] == "True"


def test_the_same_failure_again_changes_nothing() -> None:
    planned = {"conditions": [_condition("Ready", "False", "Starting", NOW), _condition("Progressing", "True")]}
    first = with_failure(planned, planned, "Invalid", "bad", 2, OLD)
    assert with_failure(planned, first, "Invalid", "bad", 2, NOW) == first


def test_a_service_that_has_no_status_yet_gets_one() -> None:
    shown = with_failure({}, {}, "Invalid", "bad", 1, NOW)
    assert [condition["type"] for condition in shown["conditions"]] == ["Ready", "Progressing"]
