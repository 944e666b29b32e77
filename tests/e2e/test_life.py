"""A service's life on a real cluster: created, used, scaled, edited, broken by hand, deleted."""

import pytest

from pagefleet_contract.names import (
    COMPONENT_ENGINE,
    CONDITION_AVAILABLE,
    CONDITION_PROGRESSING,
    CONDITION_READY,
    KIND,
    LABEL_SERVICE,
    child_name,
    service_selector,
)
from tests.e2e.cluster import Cluster, Object, holds
from tests.e2e.fleet import Fleet
from tests.e2e.services import service, with_spec
from tests.e2e.traffic import completion, streams

pytestmark = pytest.mark.cluster

_CHILD_KINDS = ("Deployment", "ReplicaSet", "Pod", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy")


def _ready(found: Object | None) -> bool:
    return holds(found, CONDITION_READY)


def _rolled(found: Object | None) -> bool:
    """Every replica is of this generation and the old ones are gone."""
    status = (found or {}).get("status") or {}
    wanted = (found or {}).get("spec", {}).get("replicas")
    return (
        holds(found, CONDITION_PROGRESSING, "True", "Complete")
        and holds(found, CONDITION_READY)
        and status.get("replicas") == status.get("updatedReplicas") == status.get("readyReplicas") == wanted
    )


def _engines(name: str) -> str:
    """The label selector of a service's engine pods."""
    return ",".join(f"{key}={value}" for key, value in service_selector(name, COMPONENT_ENGINE).items())


def _uids(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def _num_blocks(found: Object | None) -> int | None:
    """The KV blocks of one replica, as the status has them."""
    return None if found is None else (found["status"].get("kv") or {}).get("blocks")


def _children(cluster: Cluster, namespace: str, name: str) -> list[Object]:
    selector = f"{LABEL_SERVICE}={name}"
    return [child for kind in _CHILD_KINDS for child in cluster.all(kind, namespace, selector)]


def test_a_service_becomes_ready_and_answers(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    assert completion(fleet.url(namespace, "chat"), "chat")
    found = fleet.cluster.wait_for(
        "figures", KIND, namespace, "chat", lambda now: bool(now and now["status"].get("kv", {}).get("blocks"))
    )
    status = found["status"]
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert status["kv"]["blocks"] == 512
    assert status["kv"]["tokens"] == 512 * 16
    assert status["url"] == f"http://chat.{namespace}.svc:8000"
    assert status["effective"]["blockSize"] == 16


def test_scaling_follows_the_scale_subresource_and_loses_no_stream(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    with streams(fleet.url(namespace, "chat"), "chat") as tally:
        fleet.cluster.scale(namespace, "chat", 3)
        fleet.cluster.wait_for("3 ready replicas", KIND, namespace, "chat", _rolled)
        fleet.cluster.scale(namespace, "chat", 1)
        fleet.cluster.wait_for("1 ready replica", KIND, namespace, "chat", _rolled, seconds=120)
        fleet.cluster.wait("one pod", "Pod", namespace, lambda pods: len(pods) == 1, 120, _engines("chat"))
    assert not tally.faults
    assert tally.good


def test_a_scaled_number_survives_a_manifest_that_leaves_it_out(fleet: Fleet, namespace: str) -> None:
    manifest = service(namespace)
    del manifest["spec"]["replicas"]
    fleet.cluster.apply(manifest)
    fleet.cluster.scale(namespace, "chat", 2)
    fleet.cluster.apply(with_spec(manifest, scheduling={"maxQueue": 100}))
    found = fleet.cluster.wait_for("2 replicas", KIND, namespace, "chat", _rolled)
    assert found["spec"]["replicas"] == 2


def test_an_edit_that_can_be_live_restarts_nothing(fleet: Fleet, namespace: str) -> None:
    manifest = service(namespace)
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _rolled)
    before = _uids(fleet.cluster.pods(namespace, "chat"))
    fleet.cluster.apply(with_spec(manifest, scheduling={"maxQueue": 7}))
    fleet.cluster.wait_for("Ready again", KIND, namespace, "chat", _rolled)
    fleet.cluster.wait_for(
        "the live settings",
        "ConfigMap",
        namespace,
        child_name("chat", "live"),
        lambda found: found is not None and '"maxQueue": 7' in found["data"]["live.json"].replace(":7", ": 7"),
    )
    assert _uids(fleet.cluster.pods(namespace, "chat")) == before


def test_an_edit_that_needs_it_rolls_and_loses_no_stream(fleet: Fleet, namespace: str) -> None:
    manifest = service(namespace, replicas=2)
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("2 ready", KIND, namespace, "chat", _rolled)
    before = _uids(fleet.cluster.pods(namespace, "chat"))
    with streams(fleet.url(namespace, "chat"), "chat") as tally:
        fleet.cluster.apply(with_spec(manifest, kvCache={"budget": {"blocks": 600}}))
        found = fleet.cluster.wait_for("the roll's end", KIND, namespace, "chat", _rolled, seconds=120)
    assert not tally.faults
    assert tally.good
    # The last of them may still be on its way out: it has finished what it was asked.
    fleet.cluster.wait(
        "new pods alone", "Pod", namespace, lambda pods: not before & _uids(pods), selector=f"{LABEL_SERVICE}=chat"
    )
    fleet.cluster.wait_for("600 blocks", KIND, namespace, "chat", lambda found: _num_blocks(found) == 600)
    assert found["metadata"]["generation"] == 2


def test_two_edits_during_a_roll_end_at_the_last(fleet: Fleet, namespace: str) -> None:
    manifest = service(namespace, replicas=2)
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("2 ready", KIND, namespace, "chat", _rolled)
    for blocks in (600, 700):
        fleet.cluster.apply(with_spec(manifest, kvCache={"budget": {"blocks": blocks}}))
    fleet.cluster.wait_for("the roll's end", KIND, namespace, "chat", _rolled, seconds=120)
    fleet.cluster.wait_for("700 blocks", KIND, namespace, "chat", lambda found: _num_blocks(found) == 700)


def test_a_killed_pod_is_replaced_and_requests_go_on(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace, replicas=2))
    fleet.cluster.wait_for("2 ready", KIND, namespace, "chat", _rolled)
    victim = fleet.cluster.pods(namespace, "chat")[0]["metadata"]
    fleet.cluster.delete("Pod", namespace, victim["name"], gracePeriodSeconds=0)
    for _ in range(20):
        assert completion(fleet.url(namespace, "chat"), "chat")
    fleet.cluster.wait_for("2 ready again", KIND, namespace, "chat", _rolled)
    assert victim["uid"] not in _uids(fleet.cluster.pods(namespace, "chat"))


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap", "PodDisruptionBudget"])
def test_a_child_that_was_deleted_comes_back(fleet: Fleet, namespace: str, kind: str) -> None:
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    child = fleet.cluster.all(kind, namespace, f"{LABEL_SERVICE}=chat")[0]["metadata"]
    fleet.cluster.delete(kind, namespace, child["name"])
    fleet.cluster.wait_for(
        f"{kind} again",
        kind,
        namespace,
        child["name"],
        lambda found: found is not None and found["metadata"]["uid"] != child["uid"],
    )
    fleet.cluster.wait_for("Ready again", KIND, namespace, "chat", _ready)


def test_a_child_that_was_edited_is_repaired(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    engine = child_name("chat", "engine")
    fleet.cluster.patch("Deployment", namespace, engine, {"spec": {"replicas": 3}})
    fleet.cluster.patch("Service", namespace, "chat", {"spec": {"selector": {"pagefleet.dev/service": "other"}}})
    fleet.cluster.wait_for(
        "one replica", "Deployment", namespace, engine, lambda found: bool(found and found["spec"]["replicas"] == 1)
    )
    fleet.cluster.wait_for(
        "its own selector",
        "Service",
        namespace,
        "chat",
        lambda found: bool(found and found["spec"]["selector"]["pagefleet.dev/service"] == "chat"),
    )


def test_b09_zero_replicas_are_stopped_and_wake(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace, replicas=0))
    found = fleet.cluster.wait_for(
        "Stopped", KIND, namespace, "chat", lambda now: holds(now, CONDITION_READY, "False", "Stopped")
    )
    assert holds(found, CONDITION_AVAILABLE, "False")
    url = fleet.url(namespace, "chat")
    answer = fleet.post(url, "chat")
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert fleet.post(url, "other").status_code == 404
    fleet.cluster.scale(namespace, "chat", 1)
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    assert completion(url, "chat")


def test_b11_deleting_leaves_nothing_behind(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace))
    found = fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    owners = [child["metadata"].get("ownerReferences", []) for child in _children(fleet.cluster, namespace, "chat")]
    assert owners and all(owners)
    fleet.cluster.delete(KIND, namespace, "chat")
    fleet.cluster.wait_for("no service", KIND, namespace, "chat", lambda now: now is None, 30)
    for kind in _CHILD_KINDS:
        fleet.cluster.wait(f"no {kind}", kind, namespace, lambda left: not left, 30, f"{LABEL_SERVICE}=chat")
    fleet.cluster.apply(service(namespace))
    again = fleet.cluster.wait_for("Ready again", KIND, namespace, "chat", _ready)
    assert again["metadata"]["uid"] != found["metadata"]["uid"]


def test_b11_deleting_while_pods_cannot_come_up_leaves_nothing_behind(fleet: Fleet, namespace: str) -> None:
    nowhere = service(namespace, "nowhere", podTemplate={"nodeSelector": {"zone": "nowhere"}})
    imageless = service(namespace, "imageless", image="registry.invalid/x:1")
    for manifest in (nowhere, imageless):
        name = manifest["metadata"]["name"]
        fleet.cluster.apply(manifest)
        fleet.cluster.wait(f"a pod of {name}", "Pod", namespace, lambda pods: bool(pods), 30, _engines(name))
        fleet.cluster.delete(KIND, namespace, name)
    for name in ("nowhere", "imageless"):
        fleet.cluster.wait_for(f"no {name}", KIND, namespace, name, lambda found: found is None, 30)
        for kind in _CHILD_KINDS:
            fleet.cluster.wait(f"no {kind}", kind, namespace, lambda left: not left, 60, f"{LABEL_SERVICE}={name}")
