"""What holds for every plan, whatever the world looks like: states that no test would think of."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_contract.names import CONDITIONS
from pagefleet_contract.status import InferenceServiceStatus
from pagefleet_operator.actions import Apply, Delete, SetPolicy
from pagefleet_operator.conditions import Verdict
from pagefleet_operator.observed import Figures, ModelFacts, Observed, OptionalApis, Pod, Trouble
from pagefleet_operator.status import conditions_by_type
from tests.operator.builders import (
    LLAMA_8B,
    LLAMA_70B,
    NOW,
    REAL,
    SIMULATED,
    after,
    applied,
    figures,
    live,
    loading,
    observed,
    planned,
    spec,
    template_hash,
)
from tests.operator.builders import settings as operator_settings

_MANY = settings(max_examples=150, deadline=None)
_SPECS = [
    spec(REAL),
    spec(REAL, replicas=2),
    spec(REAL, replicas=3, kvCache={"blockSize": 32}),
    spec(REAL, accelerator={"count": 2}),
    spec(SIMULATED, replicas=0),
    spec(SIMULATED, replicas=2, routing={"mode": "Service"}, rollout={"maxSurge": 0, "maxUnavailable": 1}),
    spec(SIMULATED, scheduling={"maxSequences": 8}, autoscaling={"class": "HPA"}),
]
_SETTINGS = [
    operator_settings(),
    operator_settings(networkPolicies="Enabled", podMonitors="Enabled", images={"light": "new:1", "engine": "new:2"}),
]
_HASHES = [template_hash(applied(planned(observed(wanted)))) for wanted in _SPECS]
_TROUBLES = [
    Trouble("Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
    Trouble("ImagePullBackOff", "no such image"),
    Trouble("CrashLoopBackOff", ""),
]
_FIGURES = [figures(), figures(in_flight=4, live_blocks=500, policy={"max_sequences": 1}), loading("weights", 0.5)]


@st.composite
def _pods(draw: st.DrawFn) -> tuple[Pod, ...]:
    found = []
    for index in range(draw(st.integers(0, 5))):
        ready = draw(st.booleans())
        read: Figures | None = draw(st.sampled_from([None, *_FIGURES]))
        found.append(
            Pod(
                name=f"pod-{index}",
                uid=f"uid-{index}",
                component=draw(st.sampled_from(["engine", "engine", "router", ""])),
                ip=draw(st.sampled_from([None, "10.0.0.1", "fd00::1"])),
                template_hash=draw(st.sampled_from([None, "older", *_HASHES])),
                created_seconds=float(index),
                scheduled=ready or draw(st.booleans()),
                ready=ready,
                deleting=draw(st.booleans()),
                restarts=draw(st.integers(0, 3)),
                trouble=draw(st.sampled_from([None, *_TROUBLES])),
                deletion_cost=draw(st.sampled_from([None, 0, 7])),
                figures=read,
                figures_fault="" if read else draw(st.sampled_from(["", "no answer"])),
                finished=draw(st.sampled_from([False, False, True])),
                requests=draw(st.sampled_from([{}, {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}])),
            )
        )
    return tuple(found)


@st.composite
def _worlds(draw: st.DrawFn) -> Observed:
    """Return a world in which children of several generations, some of them edited, lie about."""
    wanted = draw(st.sampled_from(_SPECS))
    children: dict[tuple[str, str], Any] = {}
    for old in draw(st.lists(st.sampled_from(_SPECS), max_size=2)):
        made = applied(planned(observed(old), draw(st.sampled_from(_SETTINGS))))
        kept = draw(st.lists(st.sampled_from(sorted(made)), unique=True, max_size=len(made))) if made else []
        children |= {key: live(made[key], **draw(st.sampled_from([{}, {"observedGeneration": 0}]))) for key in kept}
    world = observed(
        wanted,
        children,
        draw(_pods()),
        draw(st.sampled_from([ModelFacts(), ModelFacts(fault="not reached"), LLAMA_8B, LLAMA_70B])),
        OptionalApis(draw(st.booleans())),
        generation=draw(st.integers(1, 3)),
    )
    status = planned(replace(world, pods=draw(_pods())), now=NOW - timedelta(minutes=draw(st.integers(0, 3)))).status
    return replace(world, service=replace(world.service, status=status or {}))


_CHOSEN = st.sampled_from(_SETTINGS)


@_MANY
@given(_worlds(), _CHOSEN)
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(world: Observed, chosen: Any) -> None:
    first = planned(world, chosen)
    world = after(world, first)
    # The pods' figures and annotations follow later; what planning writes itself is there at once.
    second = planned(world, chosen)
    assert [action for action in second.actions if isinstance(action, Apply)] == []
    world = after(world, second)
    third = planned(world, chosen)
    assert [action for action in third.actions if not isinstance(action, SetPolicy)] == []
    assert third.status is None or second.status is not None


@_MANY
@given(_worlds(), _CHOSEN)
def test_every_status_is_valid_whole_and_keeps_its_times(world: Observed, chosen: Any) -> None:
    found = planned(world, chosen)
    if found.status is None:
        return
    parsed = InferenceServiceStatus.model_validate(found.status)
    assert tuple(one.type for one in parsed.conditions) == CONDITIONS
    before = conditions_by_type(world.service.status)
    for one in parsed.conditions:
        assert one.observed_generation == world.service.generation
        was = before.get(one.type)
        if was is not None and was["status"] == one.status:
            assert one.last_transition_time == was["lastTransitionTime"]
    assert parsed.rollout is not None
    assert bool(parsed.rollout.holding) == (parsed.rollout.since is not None)


@_MANY
@given(_worlds(), _CHOSEN)
def test_ready_is_true_only_where_somebody_of_this_generation_answers(world: Observed, chosen: Any) -> None:
    document = planned(world, chosen).status
    if document is None or world.service.spec is None:
        return
    verdicts = {
        kind: Verdict(one["status"], one["reason"], one["message"])
        for kind, one in conditions_by_type(document).items()
    }
    answering = [
        one
        for one in world.pods
        if ("Deployment", "chat-engine") in world.children  # else they are somebody else's
        and (one.component, one.ready, one.deleting, one.finished) == ("engine", True, False, False)
    ]
    if verdicts["Ready"].status == "True":
        assert verdicts["Available"].status == "True"
        assert document["updatedReplicas"] >= 1
    if verdicts["Available"].status == "True":
        assert answering and world.service.spec.replicas > 0
    if not answering:
        assert verdicts["Available"].status != "True"
    assert document["readyReplicas"] == len(answering)


@settings(_MANY, max_examples=50)
@given(_worlds(), _CHOSEN)
def test_a_complete_roll_that_lacks_replicas_says_so(world: Observed, chosen: Any) -> None:
    document = planned(world, chosen).status
    if document is None or world.service.spec is None:
        return
    wanted = world.service.spec.replicas
    assert document["ready"] == f"{document['readyReplicas']}/{wanted}"
    progressing = conditions_by_type(document)["Progressing"]
    if progressing["reason"] == "Complete" and document["readyReplicas"] < wanted:
        assert f"{document['readyReplicas']} of {wanted} replica" in progressing["message"]


@_MANY
@given(_worlds(), _CHOSEN)
def test_nothing_is_deleted_that_a_pod_or_the_deployment_may_need(world: Observed, chosen: Any) -> None:
    found = planned(world, chosen)
    names = {action.name for action in found.actions if isinstance(action, Delete)}
    there = after(world, found).children
    deployment = there.get(("Deployment", "chat-engine"))
    if deployment is not None:
        for volume in deployment["spec"]["template"]["spec"]["volumes"]:
            name = volume.get("configMap", {}).get("name")
            assert name not in names
            assert name is None or ("ConfigMap", name) in there or ("ConfigMap", name) not in world.children
    current = {
        one["spec"]["template"]["metadata"]["annotations"]["pagefleet.dev/template-hash"] for one in [deployment] if one
    }
    older = [
        one for one in world.pods if one.component == "engine" and not one.finished and one.template_hash not in current
    ]
    settings_ = [
        name for (kind, name), child in world.children.items() if kind == "ConfigMap" and child.get("immutable")
    ]
    if older:
        assert names.isdisjoint(settings_), "a replica of an older generation may still start again"


@_MANY
@given(_worlds(), _CHOSEN)
def test_the_engines_replicas_are_the_specs_or_none_where_it_does_not_fit(world: Observed, chosen: Any) -> None:
    found = planned(world, chosen)
    deployment = after(world, found).children.get(("Deployment", "chat-engine"))
    if deployment is None or world.service.spec is None:
        return
    assert deployment["spec"]["replicas"] in (world.service.spec.replicas, 0)
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxSurge"] + rolling["maxUnavailable"] > 0
