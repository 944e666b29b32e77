"""A service's children on a real API server: made, repaired, and gone with it."""

from typing import Any

import pytest

from pagefleet_contract.names import KIND, LABEL_MANAGED_BY, LABEL_SERVICE, child_name
from tests.e2e.cluster import Object, holds
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, Operator, holds_for, wait_until
from tests.operator.cluster.pods import make_ready

pytestmark = pytest.mark.cluster

_KINDS = ("ConfigMap", "Deployment", "Service", "PodDisruptionBudget")


def _owned(bed: Bed, uid: str) -> list[Object]:
    """Everything in the namespace that the service controls."""
    found = [item for kind in _KINDS for item in bed.cluster.all(kind, bed.namespace)]
    return [item for item in found if any(o["uid"] == uid for o in item["metadata"].get("ownerReferences", []))]


def _versions(bed: Bed, name: str = "chat") -> dict[str, str]:
    """The versions of the service and of all its children: each write to one of them changes it."""
    resource = bed.cluster.get(KIND, bed.namespace, name)
    assert resource is not None
    objects = [resource, *_owned(bed, resource["metadata"]["uid"])]
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in objects}


def _create(bed: Bed, name: str = "chat", **spec: Any) -> Object:
    created = bed.cluster.create(service(bed.namespace, name, **spec))
    bed.cluster.wait_for(
        "an engine and a router",
        "Deployment",
        bed.namespace,
        f"{name}-router",
        lambda found: found is not None and bed.cluster.get("Deployment", bed.namespace, f"{name}-engine") is not None,
    )
    return created


def test_a_service_gets_its_children_and_each_names_it_as_owner(bed: Bed, operator: Operator) -> None:
    created = _create(bed)
    wait_until(
        "all children",
        lambda: (
            {(item["metadata"]["name"]) for item in _owned(bed, created["metadata"]["uid"])}
            >= {"chat-engine", "chat-router", "chat", "chat-live"}
        ),
    )
    for item in _owned(bed, created["metadata"]["uid"]):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == (KIND, "chat", True)


def test_a_service_is_ready_when_its_pods_are_and_says_the_generation(bed: Bed, operator: Operator) -> None:
    _create(bed)
    wait_until("both pods", lambda: len(bed.cluster.all("Pod", bed.namespace)) == 2)
    for pod in bed.cluster.all("Pod", bed.namespace):
        make_ready(bed.cluster, pod)
    ready = bed.cluster.wait_for("Ready", KIND, bed.namespace, "chat", lambda found: holds(found, "Ready"))
    assert ready["status"]["observedGeneration"] == 1
    assert ready["status"]["readyReplicas"] == 1


def test_hand_edits_are_repaired(bed: Bed, operator: Operator) -> None:
    _create(bed)
    bed.cluster.patch("Deployment", bed.namespace, "chat-engine", {"spec": {"replicas": 7}})
    bed.cluster.wait_for(
        "one replica again",
        "Deployment",
        bed.namespace,
        "chat-engine",
        lambda found: found is not None and found["spec"]["replicas"] == 1,
    )
    bed.cluster.patch("ConfigMap", bed.namespace, "chat-live", {"data": {"live.json": "{}"}})
    bed.cluster.wait_for(
        "the live settings again",
        "ConfigMap",
        bed.namespace,
        "chat-live",
        lambda found: found is not None and found["data"]["live.json"] != "{}",
    )


def test_a_child_that_lost_its_label_is_found_and_repaired(bed: Bed, operator: Operator) -> None:
    """The watch selects by that label: to it the child is deleted."""
    _create(bed)
    bed.cluster.patch("Service", bed.namespace, "chat", {"metadata": {"labels": {LABEL_MANAGED_BY: None}}})
    bed.cluster.wait_for(
        "the label again",
        "Service",
        bed.namespace,
        "chat",
        lambda found: found is not None and found["metadata"]["labels"].get(LABEL_MANAGED_BY) == "pagefleet",
    )


def test_a_deleted_child_is_made_again(bed: Bed, operator: Operator) -> None:
    _create(bed)
    for kind, name in (("Deployment", "chat-router"), ("Service", "chat"), ("ConfigMap", "chat-live")):
        before = bed.cluster.get(kind, bed.namespace, name)
        assert before is not None
        uid = before["metadata"]["uid"]
        bed.cluster.delete(kind, bed.namespace, name)
        bed.cluster.wait_for(
            f"a new {kind}",
            kind,
            bed.namespace,
            name,
            lambda found, old=uid: found is not None and found["metadata"]["uid"] != old,  # type: ignore[misc]
        )


def test_a_deleted_service_takes_its_children_along(bed: Bed, operator: Operator) -> None:
    uid = _create(bed)["metadata"]["uid"]
    bed.cluster.delete(KIND, bed.namespace, "chat")
    # Garbage collection learns a new kind up to half a minute late.
    wait_until("no child left", lambda: not _owned(bed, uid), seconds=90)
    assert bed.cluster.get(KIND, bed.namespace, "chat") is None


def test_nothing_is_written_while_nothing_happens(bed: Bed, operator: Operator) -> None:
    _create(bed)
    wait_until("both pods", lambda: len(bed.cluster.all("Pod", bed.namespace)) == 2)
    for pod in bed.cluster.all("Pod", bed.namespace):
        make_ready(bed.cluster, pod)
    bed.cluster.wait_for("Ready", KIND, bed.namespace, "chat", lambda found: holds(found, "Ready"))
    settled = _settled(bed)
    written = operator.metric("pagefleet_operator_applies_total", result="done")
    assert holds_for(12, lambda: _versions(bed) == settled)
    assert operator.metric("pagefleet_operator_applies_total", result="done") == written


def _settled(bed: Bed) -> dict[str, str]:
    """The versions once they have been the same for two seconds."""
    for _ in range(15):
        before = _versions(bed)
        if holds_for(2, lambda seen=before: _versions(bed) == seen):  # type: ignore[misc]
            return before
    raise AssertionError("still being written")


def test_what_bears_a_childs_name_and_is_not_ours_is_left_alone(bed: Bed, operator: Operator) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "chat-live", "namespace": bed.namespace},
        "data": {"mine": "yes"},
    }
    bed.cluster.create(foreign)
    bed.cluster.create(service(bed.namespace))
    told = bed.cluster.wait_for(
        "the name is taken",
        KIND,
        bed.namespace,
        "chat",
        lambda found: holds(found, "Progressing", "False", "NameTaken"),
    )
    assert not holds(told, "Ready")
    assert not _owned(bed, told["metadata"]["uid"])
    left = bed.cluster.get("ConfigMap", bed.namespace, "chat-live")
    assert left is not None
    assert left["data"] == {"mine": "yes"} and "ownerReferences" not in left["metadata"]
    bed.cluster.delete("ConfigMap", bed.namespace, "chat-live")
    bed.cluster.wait_for(
        "our own",
        "ConfigMap",
        bed.namespace,
        "chat-live",
        lambda found: found is not None and "live.json" in found.get("data", {}),
    )
    bed.cluster.wait_for(
        "no word of it any more",
        KIND,
        bed.namespace,
        "chat",
        lambda found: found is not None and not holds(found, "Progressing", "False", "NameTaken"),
    )


def test_what_an_orphaning_deletion_left_is_neither_counted_nor_taken_over_by_the_next_of_its_name(
    bed: Bed, operator: Operator
) -> None:
    first = _create(bed)
    wait_until("both pods", lambda: len(bed.cluster.all("Pod", bed.namespace)) == 2)
    for pod in bed.cluster.all("Pod", bed.namespace):
        make_ready(bed.cluster, pod)
    bed.cluster.wait_for("Ready", KIND, bed.namespace, "chat", lambda found: holds(found, "Ready"))
    left = {item["metadata"]["uid"] for item in _owned(bed, first["metadata"]["uid"])}
    bed.cluster.delete(KIND, bed.namespace, "chat", propagationPolicy="Orphan")
    bed.cluster.wait_for("it is gone", KIND, bed.namespace, "chat", lambda found: found is None)
    bed.cluster.create(service(bed.namespace))
    told = bed.cluster.wait_for(
        "the name is taken",
        KIND,
        bed.namespace,
        "chat",
        lambda found: holds(found, "Ready", "False", "NameTaken"),
    )
    assert not told["status"].get("readyReplicas") and not holds(told, "Available")
    assert not _owned(bed, told["metadata"]["uid"])
    there = {item["metadata"]["uid"] for kind in _KINDS for item in bed.cluster.all(kind, bed.namespace)}
    assert left <= there
    # As the documentation has it.
    for kind in _KINDS:
        for item in bed.cluster.all(kind, bed.namespace, f"{LABEL_SERVICE}=chat"):
            bed.cluster.delete(kind, bed.namespace, item["metadata"]["name"])
    bed.cluster.wait_for(
        "an engine of its own",
        "Deployment",
        bed.namespace,
        "chat-engine",
        lambda found: found is not None and found["metadata"]["uid"] not in left,
    )


def test_a_name_that_meets_another_services_cut_one_is_told_whose_it_is(bed: Bed, operator: Operator) -> None:
    long = "b" * 63
    bed.cluster.create(service(bed.namespace, long))
    short = child_name(long, "engine").removesuffix("-engine")
    engine = f"{short}-engine"
    bed.cluster.wait_for("its engine", "Deployment", bed.namespace, engine, lambda found: found is not None)
    bed.cluster.create(service(bed.namespace, short))
    told = bed.cluster.wait_for(
        "the name is taken",
        KIND,
        bed.namespace,
        short,
        lambda found: holds(found, "Progressing", "False", "NameTaken"),
    )
    (message,) = {c["message"] for c in told["status"]["conditions"] if c["type"] == "Progressing"}
    assert f"belongs to the InferenceService {long}" in message
    live = bed.cluster.get("Deployment", bed.namespace, engine)
    assert live is not None and [owner["name"] for owner in live["metadata"]["ownerReferences"]] == [long]


def test_a_refused_service_says_why_once_and_delays_no_other(bed: Bed, operator: Operator) -> None:
    volume = {"name": "nothing", "hostPath": {"path": "/x"}, "emptyDir": {}}
    bed.cluster.create(service(bed.namespace, "bad", podTemplate={"volumes": [volume]}))
    told = bed.cluster.wait_for(
        "a refusal", KIND, bed.namespace, "bad", lambda found: holds(found, "Progressing", "False", "Invalid")
    )
    (message,) = {c["message"] for c in told["status"]["conditions"] if c["type"] == "Progressing"}
    assert "may not specify more than 1 volume type" in message
    _create(bed, "good")
    about = [e for e in bed.cluster.all("Event", bed.namespace) if e["involvedObject"]["name"] == "bad"]
    assert len([e for e in about if e["reason"] == "Invalid"]) == 1
    bed.cluster.patch(KIND, bed.namespace, "bad", {"spec": {"podTemplate": None}})
    bed.cluster.wait_for(
        "an engine after all", "Deployment", bed.namespace, "bad-engine", lambda found: found is not None
    )
