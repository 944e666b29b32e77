"""What is read out of a resource, and when a pod's events are asked for."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_operator.observe import parse_spec, service_of, waits

NOW = datetime(2026, 11, 30, 4, 53, 20, tzinfo=UTC).timestamp()


def test_a_spec_that_cannot_be_read_is_refused_with_the_field_and_what_may_be_wrong() -> None:
    spec, refusal = parse_spec({"model": {"uri": "hf://a/b"}, "replicaz": 2})
    assert spec is None
    assert refusal.startswith("spec.replicaz: ")
    assert "this operator and the installed CRD may be of different versions" in refusal


def test_a_service_is_told_by_its_uid_and_generation_and_whether_it_is_going() -> None:
    metadata = {"name": "chat", "namespace": "prod", "uid": "u", "generation": 3, "deletionTimestamp": "x"}
    service = service_of({"metadata": metadata, "spec": {"model": {"uri": "hf://a/b"}}})
    assert (service.uid, service.generation, service.deleting, service.status) == ("u", 3, True, {})
    assert service.spec is not None and service.refusal == ""


def _pod(**changes: Any) -> dict[str, Any]:
    pod = {
        "metadata": {"creationTimestamp": "2026-11-30T04:53:10Z"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Pending"},
    }
    return pod | changes


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (_pod(), True),
        (_pod(metadata={"creationTimestamp": "2026-11-30T04:53:19Z"}), False),  # only just made
        (_pod(spec={}), False),  # on no node: its own status says why
        (_pod(status={"phase": "Running"}), False),
        (_pod(metadata={"creationTimestamp": "2026-11-30T04:53:10Z", "deletionTimestamp": "x"}), False),
    ],
)
def test_events_are_asked_for_only_where_nothing_else_says_why_a_pod_waits(pod: dict[str, Any], expected: bool) -> None:
    assert waits(pod, NOW) is expected
