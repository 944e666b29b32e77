"""B06: a roll where every accelerator is in use. One replica goes first, and status says so; nothing else rolls."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tests.operator.builders import (
    NOW,
    REAL,
    applied,
    engine,
    observed,
    planned,
    pod,
    settings,
    spec,
    template_hash,
    troubled,
    with_status,
)
from tests.operator.toy_cluster import GPU, ToyCluster


def cluster(replicas: int, gpus: int, **fields: Any) -> ToyCluster:
    made = ToyCluster(spec(REAL, replicas=replicas, **fields), gpus=gpus, random=Random(7))
    made.settle()
    made.restarts = 0
    return made


@pytest.mark.parametrize(("replicas", "gpus"), [(2, 2), (1, 1), (3, 3)])
def test_b06_a_roll_ends_without_help_where_no_accelerator_is_free(replicas: int, gpus: int) -> None:
    found = cluster(replicas, gpus)
    found.edit(image="another:1")
    fewest = replicas
    for _ in range(300):
        found.reconcile()
        found.control()
        fewest = min(fewest, len(found.ready))
        found.advance(0.3)
    found.settle()
    assert {one.template_hash for one in found.pods} == {found.hash_of_spec()}
    assert len(found.ready) == replicas
    assert fewest == replicas - 1
    assert found.deployment is not None
    assert found.deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_b06_status_names_the_missing_resource_while_the_roll_waits_and_since_when() -> None:
    found = cluster(2, 2)
    found.edit(image="another:1")
    held: list[dict[str, Any]] = []
    for _ in range(60):
        plan = found.reconcile()
        if found.status["rollout"].get("holding"):
            held.append(dict(found.status["rollout"]))
        found.control()
        found.advance(0.3)
        if any(one.reason == "TakingDownFirst" for one in plan.announcements):
            break
    else:
        raise AssertionError("no replica was taken down first")
    texts = list(dict.fromkeys(entry["holding"] for entry in held))
    waits = f"no {GPU} is free for a replica more"
    assert texts == [waits, f"{waits}: one is taken down first, then its successor starts"]
    assert len({entry["since"] for entry in held}) == 2


def test_b06_taking_down_first_is_announced_once() -> None:
    found = cluster(2, 2)
    found.edit(image="another:1")
    found.settle()
    said = [one for plan in found.plans for one in plan.announcements if one.reason == "TakingDownFirst"]
    assert len(said) == 1


def test_b06_another_default_image_of_the_operator_restarts_nothing() -> None:
    found = cluster(2, 2)
    found.settings = settings(images={"engine": "pagefleet-runtime:0.2.0"})
    found.settle()
    assert found.restarts == 0


def test_b06_a_change_of_autoscaling_alone_restarts_nothing() -> None:
    found = cluster(2, 2, autoscaling={"class": "External", "maxReplicas": 2})
    found.edit(autoscaling={"class": "External", "maxReplicas": 5})
    found.settle()
    assert found.restarts == 0


def test_b06_nothing_goes_first_for_a_replica_that_would_not_find_room_all_the_same() -> None:
    wanted = spec(REAL, replicas=1, model={"uri": "simulated://llama-3.1-8b"}, accelerator={"count": 2})
    world = ToyCluster(wanted, 1, Random(1))
    world.reconcile()
    children = world.children
    new = troubled(
        "Unschedulable",
        f"0/1 nodes are available: 1 Insufficient {GPU}.",
        "new",
        scheduled=False,
        template_hash=template_hash(children),
        requests={GPU: "2"},
    )
    old = pod("old", template_hash="older", requests={GPU: "1"})
    found = planned(observed(wanted, children, (old, new)))
    assert not any("Deployment" in action.reason for action in found.actions)
    assert found.status is not None
    assert "it asks for more than a replica that goes would free" in found.status["rollout"]["holding"]


@pytest.mark.parametrize(
    "told",
    [
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        '0/1 nodes are available: persistentvolumeclaim "no" not found.',
    ],
)
def test_b06_nothing_goes_first_where_it_is_not_room_that_is_missing(told: str) -> None:
    wanted = spec(REAL)
    world = ToyCluster(wanted, 1, Random(1))
    world.reconcile()
    new = troubled("Unschedulable", told, "new", scheduled=False, template_hash=template_hash(world.children))
    found = planned(observed(wanted, world.children, (pod("old", template_hash="older"), new)))
    assert found.actions == ()
    assert found.status is not None
    assert found.status["rollout"]["holding"].startswith(f"new: {told}")


def test_b06_a_replica_that_is_leaving_is_waited_for_before_another_goes() -> None:
    wanted = spec(REAL, replicas=2)
    world = ToyCluster(wanted, 1, Random(1))
    world.reconcile()
    hashed = template_hash(world.children)
    told = f"0/1 nodes are available: 1 Insufficient {GPU}."
    new = troubled("Unschedulable", told, "new", scheduled=False, template_hash=hashed)
    pods = (pod("old", template_hash="older"), pod("going", template_hash="older", deleting=True), new)
    found = planned(observed(wanted, world.children, pods))
    assert found.actions == ()
    assert found.status is not None
    assert found.status["rollout"]["holding"] == f"new waits for {GPU}, which going frees when it has ended"
    held = with_status(observed(wanted, world.children, pods))
    assert planned(held, now=NOW + timedelta(minutes=5)).actions == ()


def test_b06_a_replica_goes_first_only_after_the_scheduler_had_time_to_look_again() -> None:
    wanted = spec(REAL, replicas=2)
    world = ToyCluster(wanted, 1, Random(1))
    world.reconcile()
    told = f"0/1 nodes are available: 1 Insufficient {GPU}."
    new = troubled("Unschedulable", told, "new", scheduled=False, template_hash=template_hash(world.children))
    held = with_status(observed(wanted, world.children, (pod("old", template_hash="older"), new)))
    soon = planned(held, now=NOW + timedelta(seconds=9))
    assert (soon.actions, soon.again_in_seconds) == ((), 1)
    later = applied(planned(held, now=NOW + timedelta(seconds=10)))
    assert engine(later)["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
