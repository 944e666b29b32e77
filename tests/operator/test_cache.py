"""The cache: what was told is found again, old news never replaces new, and names outlive no object."""

from typing import Any

import pytest

from pagefleet_contract.names import API_VERSION, COMPONENT_ENGINE, KIND, LABEL_COMPONENT, LABEL_SERVICE
from pagefleet_operator.cache import Cache, ServiceKey
from pagefleet_operator.kinds import INFERENCE_SERVICE, POD, kind_named

DEPLOYMENT = kind_named("apps/v1", "Deployment")


def _metadata(name: str, uid: str, version: int, **given: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "prod", "uid": uid, "resourceVersion": str(version), **given}


def _service(name: str = "chat", uid: str = "uid-1", version: int = 1, **given: Any) -> dict[str, Any]:
    return {"metadata": _metadata(name, uid, version, generation=1), "spec": {}, **given}


def _child(name: str, owner: str = "uid-1", version: int = 1, **given: Any) -> dict[str, Any]:
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": "chat", "uid": owner, "controller": True}
    return {"metadata": _metadata(name, f"{name}-uid", version, ownerReferences=[reference]), "spec": {}, **given}


def _pod(name: str, version: int = 1, ip: str | None = "10.0.0.1", **metadata: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "labels": {LABEL_SERVICE: "chat", LABEL_COMPONENT: COMPONENT_ENGINE},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-engine-5d4f", "uid": "rs", "controller": True}],
    }
    return {
        "metadata": _metadata(name, f"{name}-uid", version, **own | metadata),
        "spec": {"nodeName": "n1", "containers": [{"name": "engine", "image": "x", "resources": {}}], "volumes": []},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }


KEY = ServiceKey("prod", "chat", "uid-1")


def test_a_service_its_children_and_pods_are_found_by_its_key() -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    cache.put(DEPLOYMENT, _child("chat-engine"))
    cache.put(POD, _pod("b"))
    cache.put(POD, _pod("a"))
    assert cache.service(KEY) is not None
    assert list(cache.children(KEY)) == [("Deployment", "chat-engine")]
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["a", "b"]
    assert {cache.owner_of(uid) for uid in ("uid-1", "chat-engine-uid", "a-uid")} == {KEY}


def test_what_is_handed_out_names_its_kind_although_lists_leave_it_out() -> None:
    cache = Cache()
    cache.put(DEPLOYMENT, _child("chat-engine"))
    ((_, live),) = cache.children(KEY).items()
    assert (live["apiVersion"], live["kind"]) == ("apps/v1", "Deployment")


def test_what_nobody_reads_is_not_kept() -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    noise = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 1000, "mine": "yes"}
    child = _child("chat-engine")
    child["metadata"] |= {"managedFields": [{"manager": "x"}], "annotations": noise}
    cache.put(DEPLOYMENT, child)
    cache.put(POD, _pod("a"))
    ((_, live),) = cache.children(KEY).items()
    assert live["metadata"]["annotations"] == {"mine": "yes"}
    assert "managedFields" not in live["metadata"]
    assert "volumes" not in cache.pods(KEY)[0]["spec"]


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "ReplicaSet", "name": "chat-engine-5d4f", "uid": "rs"}],
        [{"kind": "ReplicaSet", "name": "other-5d4f", "uid": "rs", "controller": True}],
        [{"kind": "Job", "name": "chat-engine-5d4f", "uid": "rs", "controller": True}],
    ],
)
def test_a_pod_that_only_bears_the_labels_is_no_replica_and_is_not_asked(owners: list[dict[str, Any]]) -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    cache.put(POD, _pod("stranger", ownerReferences=owners))
    assert cache.pods(KEY) == [] and list(cache.replicas()) == [] and cache.owner_of("stranger-uid") is None


def test_a_pod_that_is_taken_out_of_a_service_by_hand_leaves_nothing_behind() -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    cache.put(POD, _pod("a"))
    cache.put(POD, _pod("a", version=2, labels={LABEL_SERVICE: "other"}))
    assert cache.pods(KEY) == []
    cache.drop("a-uid")
    assert cache.pods(KEY) == [] and list(cache.replicas()) == []


def test_a_child_whose_owner_reference_is_taken_away_stays_one_until_it_is_gone() -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    cache.put(DEPLOYMENT, _child("chat-engine"))
    bare = _child("chat-engine", version=2)
    del bare["metadata"]["ownerReferences"]
    cache.put(DEPLOYMENT, bare)
    assert list(cache.children(KEY)) == [("Deployment", "chat-engine")]
    cache.drop("chat-engine-uid")
    assert cache.children(KEY) == {}


def test_old_news_never_replaces_new() -> None:
    cache = Cache()
    assert cache.put(INFERENCE_SERVICE, _service(version=9, status={"replicas": 2}))
    assert not cache.put(INFERENCE_SERVICE, _service(version=9, status={"replicas": 2}))
    assert not cache.put(INFERENCE_SERVICE, _service(version=8, status={"replicas": 1}))
    # As numbers: 10 comes after 9.
    assert cache.put(INFERENCE_SERVICE, _service(version=10, status={"replicas": 3}))
    found = cache.service(KEY)
    assert found is not None and found["status"] == {"replicas": 3}


def test_a_new_version_that_says_the_same_is_no_news_and_keeps_older_ones_out() -> None:
    cache = Cache()
    assert cache.put(INFERENCE_SERVICE, _service(version=1))
    assert not cache.put(INFERENCE_SERVICE, _service(version=5))
    assert not cache.put(INFERENCE_SERVICE, _service(version=3, status={"replicas": 2}))
    assert cache.put(INFERENCE_SERVICE, _service(version=6, status={"replicas": 2}))


def test_a_new_object_takes_the_name_whatever_order_the_news_come_in() -> None:
    old, new = _service(uid="uid-1", version=5), _service(uid="uid-2", version=8)
    new_key = ServiceKey("prod", "chat", "uid-2")
    for order in ((old, new), (new, old)):
        cache = Cache()
        for manifest in order:
            cache.put(INFERENCE_SERVICE, manifest)
        assert cache.service(KEY) is None
        assert cache.service(new_key) is not None
        cache.drop("uid-1")
        assert cache.service(new_key) is not None


def test_children_of_an_old_object_are_not_those_of_a_new_one() -> None:
    cache = Cache()
    cache.put(DEPLOYMENT, _child("chat-engine", owner="uid-1"))
    cache.put(INFERENCE_SERVICE, _service(uid="uid-2", version=8))
    assert cache.children(ServiceKey("prod", "chat", "uid-2")) == {}


def test_what_was_dropped_is_gone_everywhere() -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    cache.put(DEPLOYMENT, _child("chat-engine"))
    cache.put(POD, _pod("a"))
    for uid in ("a-uid", "chat-engine-uid", "uid-1"):
        assert cache.drop(uid)
        assert not cache.drop(uid)
        assert not cache.knows(uid)
    assert (cache.children(KEY), cache.pods(KEY), cache.service_keys(), list(cache.replicas())) == ({}, [], [], [])


@pytest.mark.parametrize(
    "unusable",
    [
        _pod("a", ip=None),
        _pod("a", deletionTimestamp="2026-11-29T12:00:00Z"),
        _pod("a") | {"status": {"phase": "Pending", "podIP": "10.0.0.1"}},
    ],
)
def test_only_running_pods_with_an_address_are_asked_for_figures(unusable: dict[str, Any]) -> None:
    cache = Cache()
    cache.put(POD, _pod("b", ip="fd00::1"))
    cache.put(POD, unusable)
    (replica,) = cache.replicas()
    assert (replica.pod_uid, replica.ip, replica.service, replica.ready) == ("b-uid", "fd00::1", "chat", True)


def test_uids_are_told_by_kind_and_namespace() -> None:
    cache = Cache()
    cache.put(INFERENCE_SERVICE, _service())
    cache.put(POD, _pod("a"))
    assert cache.uids(POD, "prod") == cache.uids(POD, None) == {"a-uid"}
    assert cache.uids(POD, "other") == set()
