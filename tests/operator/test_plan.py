"""What a plan does to the children: made, repaired, replaced, deleted, each with its reason."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pagefleet_contract.names import MANAGED_BY_VALUE
from pagefleet_operator.actions import Apply, Delete, Plan, SetPolicy
from pagefleet_operator.observed import ModelFacts, OptionalApis
from tests.operator.builders import (
    LLAMA_70B,
    REAL,
    after,
    all_live,
    applied,
    deleted,
    edited,
    engine,
    figures,
    image_of,
    observed,
    of_kind,
    planned,
    pod,
    router,
    serving,
    settings,
    spec,
    template_hash,
    troubled,
)


def test_a_new_service_gets_its_children_settings_before_pods() -> None:
    found = planned(observed())
    kinds = [action.manifest["kind"] for action in found.actions if isinstance(action, Apply)]
    assert kinds[:3] == ["ConfigMap", "ConfigMap", "Deployment"]
    names = {(kind, name) for kind, name in applied(found) if not name.startswith("chat-") or kind != "ConfigMap"}
    assert names == {
        ("Deployment", "chat-engine"),
        ("Deployment", "chat-router"),
        ("Service", "chat"),
        ("PodDisruptionBudget", "chat-engine"),
    }
    assert all(action.reason for action in found.actions)


def test_a_world_that_is_as_it_shall_be_gives_an_empty_plan() -> None:
    assert planned(serving()) == Plan()
    assert planned(serving(spec(replicas=3, routing={"mode": "Service"}))) == Plan()


def test_a_service_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    assert planned(observed(deleting=True)) == Plan()


def test_a_spec_that_cannot_be_read_changes_no_child_and_says_so() -> None:
    world = serving()
    broken = replace(world, service=replace(world.service, spec=None, refusal="spec.model: missing", generation=2))
    found = planned(broken)
    assert found.actions == ()
    assert found.status is not None
    reasons = {entry["type"]: (entry["status"], entry["reason"]) for entry in found.status["conditions"]}
    assert reasons["Ready"] == ("False", "InvalidSpec")
    assert reasons["Available"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("spec", "replicas"), 7, "spec.replicas is 7, not 1"),
        (("spec", "template", "spec", "containers", 0, "image"), "evil", "image is evil, not pagefleet:0.1.0"),
        (("spec", "strategy", "rollingUpdate", "maxSurge"), "25%", "maxSurge is 25%, not 1"),
        (("metadata", "ownerReferences"), [], "ownerReferences[11111111-2222-3333-4444-555555555555] is missing"),
    ],
)
def test_a_hand_edit_is_undone_with_the_difference_as_reason(path: tuple[Any, ...], value: Any, told: str) -> None:
    world = serving()
    children = {**world.children, ("Deployment", "chat-engine"): _changed(engine(world.children), path, value)}
    (action,) = planned(replace(world, children=children)).actions
    assert isinstance(action, Apply)
    assert told in action.reason
    assert action.manifest["metadata"]["name"] == "chat-engine"


def test_a_deleted_child_comes_back() -> None:
    world = serving()
    for key in world.children:
        left = {name: child for name, child in world.children.items() if name != key}
        (action,) = planned(replace(world, children=left)).actions
        assert isinstance(action, Apply)
        assert (action.manifest["kind"], action.manifest["metadata"]["name"]) == key
        assert action.reason.endswith("isn't there")


def test_a_live_edit_rolls_nothing_and_is_handed_to_replicas_that_have_other_values() -> None:
    world = edited(serving(), scheduling={"maxSequences": 32, "maxQueue": 8})
    found = planned(world)
    assert set(applied(found)) == {("ConfigMap", "chat-live")}
    (policy,) = of_kind(found, SetPolicy)
    assert policy.policy["maxSequences"] == 32
    assert policy.policy["maxQueue"] == 8
    assert "max_queue is 512, not 8" in policy.reason


def test_live_values_go_to_no_replica_that_is_not_ready_of_another_generation_or_unread() -> None:
    world = edited(serving(), scheduling={"maxSequences": 32})
    hashed = template_hash(world.children)
    old = figures(policy={"max_sequences": 256})
    pods = (
        pod("a", template_hash=hashed, figures=old, ready=False),
        pod("b", template_hash="another", figures=old),
        pod("c", template_hash=hashed),
        pod("d", template_hash=hashed, figures=old, deleting=True),
    )
    assert of_kind(planned(replace(world, pods=pods)), SetPolicy) == []


def test_an_edit_that_needs_a_restart_gets_settings_of_its_own_and_keeps_the_old_ones() -> None:
    world = serving()
    before = set(world.children)
    model = {"uri": "simulated://llama-3.1-8b", "quantization": "int8"}
    for changes in ({"kvCache": {"blockSize": 32}}, {"model": model}):
        found = planned(edited(world, **changes))
        (settings_,) = [key for key in applied(found) if key[0] == "ConfigMap"]
        assert settings_ not in before
        assert engine(applied(found))
        assert deleted(found) == set()


def test_old_settings_go_only_when_no_pod_may_need_them() -> None:
    world = serving(spec(replicas=2))
    (old,) = [key for key, child in world.children.items() if child.get("immutable")]
    rolled = after(edited(world, kvCache={"blockSize": 32}), planned(edited(world, kvCache={"blockSize": 32})))
    old_pods, hashed = world.pods, template_hash(rolled.children)
    new_pods = tuple(pod(f"new-{index}", template_hash=hashed) for index in range(2))
    leaving = tuple(replace(one, deleting=True, ready=False) for one in old_pods[:1])
    assert deleted(planned(replace(rolled, pods=old_pods))) == set()
    assert deleted(planned(replace(rolled, pods=(*new_pods, *old_pods)))) == set()
    assert deleted(planned(replace(rolled, pods=(*new_pods, *leaving, router())))) == set()
    assert deleted(planned(replace(rolled, pods=(*new_pods, router())))) == {old}


def test_only_our_own_children_are_deleted() -> None:
    world = serving()
    stray = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "stray", "uid": "u", "labels": {"app.kubernetes.io/managed-by": MANAGED_BY_VALUE}},
    }
    users = {**stray, "metadata": {"name": "users", "uid": "v", "labels": {}}}
    children = {**world.children, ("ConfigMap", "stray"): stray, ("ConfigMap", "users"): users}
    (gone,) = planned(replace(world, children=children)).actions
    assert gone == Delete("v1", "ConfigMap", "stray", "u", "the ConfigMap stray is no longer needed")


def test_a_child_that_is_going_already_is_not_deleted_again() -> None:
    world = serving(chosen=settings(networkPolicies="Enabled"))
    key = ("NetworkPolicy", "chat-engine")
    going = {**world.children[key], "metadata": {**world.children[key]["metadata"], "deletionTimestamp": "2026-11-29"}}
    assert deleted(planned(world)) == {key}
    assert planned(replace(world, children={**world.children, key: going})).actions == ()


def test_routing_service_has_no_router_and_the_engines_behind_the_door() -> None:
    world = serving()
    found = planned(edited(world, routing={"mode": "Service"}))
    assert applied(found)["Service", "chat"]["spec"]["selector"]["pagefleet.dev/component"] == "engine"
    assert deleted(found) == {("Deployment", "chat-router"), ("ConfigMap", "chat-router")}
    applies = [isinstance(action, Apply) for action in found.actions]
    assert applies == sorted(applies, reverse=True), "the door moves before the router goes"


def test_the_door_moves_to_a_router_only_when_it_is_ready() -> None:
    world = serving(spec(routing={"mode": "Service"}))
    world = edited(replace(world, pods=world.pods[:1]), routing={"mode": "LeastPressure"})
    first = planned(world)
    assert ("Deployment", "chat-router") in applied(first)
    assert ("Service", "chat") not in applied(first)
    world = after(world, first)
    assert ("Service", "chat") not in applied(planned(replace(world, pods=(*world.pods, router(ready=False)))))
    last = applied(planned(replace(world, pods=(*world.pods, router()))))
    assert last["Service", "chat"]["spec"]["selector"]["pagefleet.dev/component"] == "router"


def test_a_pod_monitor_comes_only_where_it_is_asked_for_and_its_api_is_there() -> None:
    wanted = settings(podMonitors="Enabled")
    there = OptionalApis(pod_monitors=True)
    assert ("PodMonitor", "chat") in applied(planned(observed(apis=there), wanted))
    assert ("PodMonitor", "chat") not in applied(planned(observed(), wanted))
    assert ("PodMonitor", "chat") not in applied(planned(observed(apis=there)))
    without = planned(replace(serving(), apis=OptionalApis()), wanted)
    assert without.status is not None
    assert "the cluster has no PodMonitor" in without.status["effective"]["notes"][0]


def test_a_network_policy_comes_where_it_is_asked_for_and_a_router_stands_before_the_engines() -> None:
    wanted = settings(networkPolicies="Enabled")
    assert ("NetworkPolicy", "chat-engine") in applied(planned(observed(), wanted))
    assert ("NetworkPolicy", "chat-engine") not in applied(planned(observed(spec(routing={"mode": "Service"})), wanted))
    world = serving(chosen=wanted)
    assert deleted(planned(world)) == {("NetworkPolicy", "chat-engine")}


# --- fit


def test_a_model_that_does_not_fit_gets_no_pods_but_its_door() -> None:
    found = planned(observed(spec(REAL), model=LLAMA_70B))
    kinds = {kind for kind, _ in applied(found)}
    assert ("Deployment", "chat-engine") not in applied(found)
    assert {"Service", "PodDisruptionBudget"} <= kinds
    assert found.status is not None
    assert "It would fit in" in str(found.status)


def test_older_replicas_go_on_where_a_new_spec_does_not_fit() -> None:
    world = serving(spec(REAL, replicas=2))
    changed = replace(edited(world, model={"uri": "hf://acme/llama-70b"}), model=LLAMA_70B)
    found = planned(changed)
    assert found.actions == ()
    assert planned(after(changed, found)).actions == ()
    scaled = planned(replace(edited(changed, replicas=1)))
    (deployment,) = applied(scaled).values()
    assert deployment["spec"]["replicas"] == 1
    assert template_hash(applied(scaled)) == template_hash(world.children)


def test_a_replica_that_runs_is_better_proof_than_arithmetic() -> None:
    world = replace(serving(spec(REAL)), model=LLAMA_70B)
    found = planned(world)
    assert engine(applied(found))["spec"]["replicas"] == 1
    assert found.status is None, "what was said stays true"
    (fits,) = [entry for entry in world.service.status["conditions"] if entry["type"] == "ModelFits"]
    assert (fits["status"], fits["reason"]) == ("True", "ReplicaRuns")


def test_pods_of_a_spec_that_turns_out_not_to_fit_go_before_they_have_loaded() -> None:
    world = serving(spec(REAL, replicas=2))
    starting = tuple(replace(one, ready=False, figures=None) for one in world.pods[:2])
    found = planned(replace(world, pods=starting, model=LLAMA_70B))
    assert engine(applied(found))["spec"]["replicas"] == 0
    again = planned(after(replace(world, pods=(), model=LLAMA_70B), found))
    assert again.actions == ()


def test_nothing_that_does_not_fit_is_started_again_by_a_scale() -> None:
    world = serving(spec(REAL, replicas=2))
    world = after(world, planned(edited(world, replicas=0)))
    world = replace(edited(world, replicas=3, model={"uri": "hf://acme/llama-70b"}), pods=(), model=LLAMA_70B)
    assert ("Deployment", "chat-engine") not in applied(planned(world))


def test_a_deadline_that_the_models_size_has_set_stays_while_the_size_is_looked_up_again() -> None:
    world = serving(spec(REAL, accelerator={"memory": "320Gi"}), model=LLAMA_70B)
    assert engine(world.children)["spec"]["progressDeadlineSeconds"] > 1800 + 600
    assert planned(replace(world, model=ModelFacts(fault="the model's size is being looked up"))).actions == ()


# --- the image


def test_another_default_image_rolls_no_engine_until_the_spec_asks_for_a_roll() -> None:
    world, newer = serving(), settings(images={"light": "pagefleet:0.2.0"})
    found = planned(world, newer)
    assert set(applied(found)) == {("Deployment", "chat-router")}
    assert found.status is not None
    assert found.status["effective"]["image"] == "pagefleet:0.1.0"
    assert "keep pagefleet:0.1.0 until the spec asks for a roll" in found.status["effective"]["notes"][0]
    assert ("Deployment", "chat-engine") not in applied(planned(edited(world, replicas=1), newer))
    assert image_of(applied(planned(edited(world, replicas=3), newer))) == "pagefleet:0.1.0"
    assert image_of(applied(planned(edited(world, kvCache={"blockSize": 32}), newer))) == "pagefleet:0.2.0"


def test_an_image_of_the_spec_wins_and_its_absence_brings_the_default_back() -> None:
    world = serving(spec(image="mine:1"))
    assert image_of(world.children) == "mine:1"
    assert planned(world, settings(images={"light": "pagefleet:0.2.0"})).actions[0].reason.find("chat-engine") < 0
    document = spec()
    world = replace(world, service=replace(world.service, spec=document))
    assert image_of(applied(planned(world))) == "pagefleet:0.1.0"


def test_a_default_image_that_cannot_be_pulled_is_not_kept() -> None:
    world = serving()
    hashed = template_hash(world.children)
    stuck = troubled("ImagePullBackOff", "no such image", template_hash=hashed)
    found = planned(replace(world, pods=(stuck,)), settings(images={"light": "pagefleet:0.2.0"}))
    assert image_of(applied(found)) == "pagefleet:0.2.0"


def test_a_service_without_replicas_takes_the_new_default() -> None:
    world = serving(spec(replicas=0))
    found = planned(world, settings(images={"light": "pagefleet:0.2.0"}))
    assert image_of(applied(found)) == "pagefleet:0.2.0"


def test_children_carry_nothing_of_the_resources_annotations() -> None:
    """Nothing that other programs keep there reaches pods and rolls them."""
    found = applied(planned(observed()))
    names = {name for child in found.values() for name in child["metadata"].get("annotations", {})}
    assert names == {"pagefleet.dev/spec-hash", "pagefleet.dev/image"}


def test_two_services_have_different_keys_and_the_pods_only_the_digest() -> None:
    one = applied(planned(observed()))
    other = applied(planned(observed(uid="another")))
    keys = [
        child["data"]["operator-keys"] for found in (one, other) for child in found.values() if child.get("immutable")
    ]
    assert keys[0] != keys[1]
    assert all(key.startswith("sha256:") and len(key.strip()) == 71 for key in keys)


def test_the_order_of_actions_and_children_does_not_depend_on_the_world() -> None:
    world = serving(spec(replicas=2))
    backwards = replace(
        world, children=dict(reversed(all_live(world.children).items())), pods=tuple(reversed(world.pods))
    )
    changed = {"kvCache": {"blockSize": 32}}
    assert planned(edited(world, **changed)) == planned(edited(backwards, **changed))


def _changed(manifest: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> Any:
    head, *rest = path
    if isinstance(manifest, list):
        return [_changed(item, tuple(rest), value) if index == head else item for index, item in enumerate(manifest)]
    return {**manifest, head: _changed(manifest[head], tuple(rest), value) if rest else value}
