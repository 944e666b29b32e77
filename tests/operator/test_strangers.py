"""Somebody else's object bears the name of a child: what is done all the same, and what is said."""

from dataclasses import replace

import pytest

from pagefleet_operator.actions import Action, AnnotatePod, Apply, Delete, SetPolicy
from pagefleet_operator.children import Key
from pagefleet_operator.faults import NameTakenFault, TemporaryFault
from pagefleet_operator.strangers import check_owner, in_one, not_held_back, unmade
from tests.operator.builders import all_live, applied, condition, edited, engine, observed, planned, serving

LIVE: Key = ("ConfigMap", "chat-live")
BUDGET: Key = ("PodDisruptionBudget", "chat-engine")
CONFIG_MAP = {"kind": "ConfigMap", "metadata": {"name": "chat-live"}}


def kept(actions: tuple[Action, ...]) -> set[Key]:
    return {(a.manifest["kind"], a.manifest["metadata"]["name"]) for a in actions if isinstance(a, Apply)}


@pytest.mark.parametrize("taken", [LIVE, BUDGET, ("Service", "chat"), ("Deployment", "chat-router")])
def test_nothing_of_a_new_service_is_made_while_one_of_its_names_is_taken(taken: Key) -> None:
    actions = planned(observed()).actions
    assert taken in kept(actions)
    assert not_held_back(actions, {taken}, {}) == ()
    assert not_held_back(actions, set(), {}) == actions


def test_what_a_first_build_has_made_before_it_was_broken_off_is_not_gone_on_with() -> None:
    begun = {key: child for key, child in all_live(applied(planned(observed()))).items() if key[0] == "Service"}
    actions = planned(observed(children=begun)).actions
    assert not_held_back(actions, {LIVE}, begun) == ()


def test_a_service_that_runs_is_looked_after_but_its_pods_do_not_read_somebody_elses_settings() -> None:
    world = edited(serving(), kvCache={"blockSize": 32})
    lacking = {key: child for key, child in world.children.items() if key not in (LIVE, ("Service", "chat"))}
    actions = planned(replace(world, children=lacking)).actions
    assert {LIVE, ("Service", "chat"), ("Deployment", "chat-engine")} <= kept(actions)
    left = kept(not_held_back(actions, {LIVE}, lacking))
    assert ("Service", "chat") in left
    assert not left & {LIVE, ("Deployment", "chat-engine")}


def test_a_service_that_runs_is_scaled_while_the_name_of_something_else_is_taken() -> None:
    world = edited(serving(), replicas=3)
    lacking = {key: child for key, child in world.children.items() if key != BUDGET}
    left = not_held_back(planned(replace(world, children=lacking)).actions, {BUDGET}, lacking)
    assert kept(left) == {("Deployment", "chat-engine")}


def test_nothing_is_deleted_and_running_replicas_get_their_policy() -> None:
    live = all_live({("Deployment", "chat-engine"): engine(applied(planned(observed())))})
    told: tuple[Action, ...] = (
        SetPolicy("chat-engine-a", "10.0.0.1", {}, "other values"),
        AnnotatePod("chat-engine-a", "u", {}, "it goes first"),
    )
    gone = Delete("v1", "ConfigMap", "chat-old", "u", "no longer needed")
    assert not_held_back((*told, gone), {LIVE}, live) == told


def test_only_names_of_children_that_are_not_there_are_looked_up() -> None:
    world = serving()
    lacking = {key: child for key, child in world.children.items() if key != BUDGET}
    assert unmade(planned(replace(edited(world, replicas=3), children=lacking)).actions, lacking) == (
        applied(planned(replace(world, children=lacking)))[BUDGET],
    )


def test_an_own_object_may_be_applied() -> None:
    check_owner(CONFIG_MAP, "u", "u", "chat")


@pytest.mark.parametrize(
    ("owner", "other_service", "fault", "told"),
    [
        (None, None, NameTakenFault, "is there and isn't ours; delete it, or give the service another name"),
        ("o", "other", NameTakenFault, "belongs to the InferenceService other; give this service another name"),
        ("o", None, TemporaryFault, "belongs to an InferenceService that was deleted; it is going"),
    ],
)
def test_somebody_elses_object_is_told_with_what_to_do(
    owner: str | None, other_service: str | None, fault: type[Exception], told: str
) -> None:
    with pytest.raises(fault) as raised:
        check_owner(CONFIG_MAP, owner, "u", other_service)
    assert str(raised.value) == f"ConfigMap chat-live {told}"


def test_all_names_that_are_taken_are_told_at_once() -> None:
    told = in_one([NameTakenFault("ConfigMap a is there"), NameTakenFault("Service b is there")])
    assert [(fault.reason, fault.message) for fault in told] == [
        ("NameTaken", "ConfigMap a is there; Service b is there")
    ]
    assert in_one([]) == ()


@pytest.mark.parametrize(
    ("lost", "counted", "ready"),
    [
        (("Deployment", "chat-engine"), "0/1", ("Unknown", "Pending", "the engine's Deployment is being made")),
        (
            ("Deployment", "chat-router"),
            "1/1",
            ("False", "RouterStarting", "replicas are ready, the router before them isn't yet"),
        ),
    ],
)
def test_pods_of_a_deployment_that_somebody_else_has_are_not_counted(
    lost: Key, counted: str, ready: tuple[str, str, str]
) -> None:
    world = serving()
    left = {key: child for key, child in world.children.items() if key != lost}
    found = planned(replace(world, children=left))
    assert found.status is not None and found.status["ready"] == counted
    assert condition(found, "Ready") == ready
