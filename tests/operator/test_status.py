"""What the status says."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pagefleet_contract.names import CONDITIONS
from pagefleet_contract.status import InferenceServiceStatus
from pagefleet_operator.observed import Observed, Pod, Trouble
from tests.operator.builders import (
    LLAMA_70B,
    NOW,
    REAL,
    after,
    condition,
    edited,
    engine,
    figures,
    live,
    loading,
    observed,
    planned,
    pod,
    router,
    serving,
    settings,
    spec,
    template_hash,
    troubled,
    with_pods,
    with_status,
)


@pytest.mark.parametrize(
    ("world", "kind", "status", "reason", "told"),
    [
        (with_pods(pod(), router()), "Ready", "True", "Serving", "1 of 1 replica is ready"),
        (with_pods(pod(), router()), "Available", "True", "Serving", ""),
        (with_pods(pod(), router()), "ModelLoaded", "True", "Loaded", ""),
        (with_pods(pod(), router()), "Progressing", "True", "Complete", ""),
        (with_pods(pod(), router()), "ModelFits", "True", "ReplicaRuns", ""),
        (with_pods(pod(), router()), "ScalingActive", "False", "NotConfigured", "kubectl scale"),
        (with_pods(), "Ready", "False", "Starting", "no replica exists yet"),
        (with_pods(pod(ready=False)), "Ready", "False", "Starting", "chat-engine-a isn't ready yet"),
        (with_pods(pod(ready=False)), "ModelLoaded", "Unknown", "Pending", ""),
        (with_pods(pod()), "Ready", "False", "RouterStarting", "the router before them isn't yet"),
        (with_pods(pod()), "Available", "False", "RouterStarting", ""),
        (with_pods(pod(), routing={"mode": "Service"}), "Ready", "True", "Serving", ""),
        (with_pods(pod(ready=False, figures=loading("weights", 0.47))), "Ready", "False", "Loading", "weights, 40 %"),
        (with_pods(pod(ready=False, figures=loading("gate", None))), "ModelLoaded", "False", "Loading", "model: gate"),
        (with_pods(router(), replicas=0), "Ready", "False", "Stopped", "spec.replicas is 0"),
        (with_pods(router(), replicas=0), "Available", "False", "Stopped", ""),
        (with_pods(router(), replicas=0), "Progressing", "True", "Complete", ""),
        (with_pods(pod("b", template_hash="older"), router()), "Ready", "False", "RollingOut", "1 replica of an older"),
        (with_pods(pod("b", template_hash="older"), router()), "Available", "True", "Serving", ""),
        (with_pods(pod("b", template_hash="older"), router()), "Progressing", "True", "RollingOut", "0 of 1 replica"),
        (with_pods(autoscaling={"class": "External"}), "ScalingActive", "Unknown", "External", ""),
        (with_pods(autoscaling={"class": "HPA"}), "ScalingActive", "False", "NotSupported", "autoscaling.class is HPA"),
    ],
)
def test_conditions_say_what_is(world: Observed, kind: str, status: str, reason: str, told: str) -> None:
    found = condition(planned(world), kind)
    assert found[:2] == (status, reason)
    assert told in found[2]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "registry.invalid/x:1"'),
        ("ErrImagePull", "no such host"),
        ("Unschedulable", '0/1 nodes are available: persistentvolumeclaim "no-such-claim" not found.'),
        ("Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        ("FailedMount", 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'),
        ("CreateContainerConfigError", 'secret "none" not found'),
        ("CrashLoopBackOff", "hf://acme/does-not-exist: 404"),
        ("OOMKilled", "container engine took more memory than its limit and was killed"),
    ],
)
def test_b08_nothing_serves_and_the_conditions_name_why(reason: str, message: str) -> None:
    world = with_pods(troubled(reason, message), router())
    for kind in ("Ready", "Available"):
        status, found, told = condition(planned(world), kind)
        assert (status, found) == ("False", reason)
        assert message in told and "chat-engine-a" in told


def test_of_several_troubles_the_oldest_replicas_is_told_in_whatever_order_they_come() -> None:
    old = troubled("ErrImagePull", "gone", "z", created_seconds=1.0)
    new = troubled("OOMKilled", "too much", "a", created_seconds=2.0)
    for pods in ((old, new), (new, old)):
        assert condition(planned(with_pods(*pods, replicas=2)), "Ready")[2] == "z: gone"


def test_b08_available_is_false_as_soon_as_the_last_replica_is_gone_and_true_again_without_an_edit() -> None:
    world = serving()
    gone = replace(world, pods=(router(),))
    assert condition(planned(gone), "Available")[:2] == ("False", "Starting")
    gone = with_status(gone)
    back = planned(replace(gone, pods=world.pods))
    assert condition(back, "Ready")[0] == "True"


def test_b08_the_cluster_refuses_to_make_pods_and_the_condition_says_why() -> None:
    world = with_pods(router())
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    deployment = live(engine(world.children), conditions=[failure])
    world = replace(world, children={**world.children, ("Deployment", "chat-engine"): deployment})
    assert condition(planned(world), "Available") == ("False", "FailedCreate", "exceeded quota: gpus")


def test_a_load_that_fails_turns_model_loaded_with_the_last_words() -> None:
    world = with_pods(troubled("CrashLoopBackOff", "the checkpoint has no config.json"))
    assert condition(planned(world), "ModelLoaded")[:2] == ("False", "LoadFailed")


def test_a_trouble_of_this_generation_is_told_while_an_older_one_serves() -> None:
    world = with_pods(pod("old", template_hash="older"), troubled("ErrImagePull", "no such image"), router())
    found = planned(world)
    assert condition(found, "Available")[0] == "True"
    assert condition(found, "Ready")[:2] == ("False", "ErrImagePull")
    assert found.status is not None
    assert "no such image (ErrImagePull)" in found.status["rollout"]["holding"]


def test_a_routers_trouble_is_told_where_replicas_are_ready() -> None:
    stuck = troubled("ImagePullBackOff", "no such image", "chat-router-a", component="router")
    status, reason, told = condition(planned(with_pods(pod(), stuck)), "Available")
    assert (status, reason) == ("False", "ImagePullBackOff")
    assert told.startswith("the router isn't ready: chat-router-a")


def test_a_roll_past_its_deadline_is_no_progress() -> None:
    world = with_pods(troubled("CrashLoopBackOff", "out of luck"), router())
    exceeded = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": ""}
    deployment = live(engine(world.children), conditions=[exceeded])
    found = planned(replace(world, children={**world.children, ("Deployment", "chat-engine"): deployment}))
    status, reason, told = condition(found, "Progressing")
    assert (status, reason) == ("False", "DeadlineExceeded")
    assert "out of luck" in told
    assert ("Warning", "DeadlineExceeded") in [(one.type, one.reason) for one in found.announcements]


def test_a_replica_that_fails_after_the_roll_does_not_make_it_a_roll_again() -> None:
    world = serving(spec(replicas=2))
    one, other, door = world.pods
    found = planned(replace(world, pods=(one, replace(other, ready=False), door)))
    told = "the roll is complete; 1 of 2 replicas is ready; chat-engine-1 isn't ready yet"
    assert condition(found, "Progressing") == ("True", "Complete", told)
    assert condition(found, "Available")[2] == "1 of 2 replicas is ready"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"trouble": Trouble("Unschedulable", "1 Insufficient nvidia.com/gpu")}, "new: 1 Insufficient nvidia.com/gpu"),
        ({"trouble": Trouble("ImagePullBackOff", "no such image")}, "new: no such image"),
        ({"figures": loading("weights", 0.4)}, "new isn't ready yet"),
    ],
)
def test_scaling_up_is_complete_only_when_the_added_replica_is_ready(fields: dict[str, Any], told: str) -> None:
    world = edited(serving(), replicas=2)
    found = planned(world)  # the Deployment has one replica still, and that one is ready
    assert condition(found, "Progressing") == ("True", "RollingOut", "1 of 2 replicas is ready in this generation")
    world = after(world, found)
    hashed = template_hash(world.children)
    one, door = world.pods
    stuck = replace(world, pods=(one, pod("new", template_hash=hashed, ready=False, **fields), door))
    wanted = ("True", "RollingOut", f"1 of 2 replicas is ready in this generation; {told}")
    assert condition(planned(stuck), "Progressing") == wanted
    there = replace(world, pods=(one, pod("new", template_hash=hashed, figures=figures()), door))
    assert condition(planned(there), "Progressing") == ("True", "Complete", "2 replicas of this generation")


def test_a_quota_that_keeps_an_added_replica_from_being_made_is_told() -> None:
    world = edited(serving(), replicas=2)
    world = after(world, planned(world))
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    deployment = live(engine(world.children), conditions=[failure])
    world = replace(world, children={**world.children, ("Deployment", "chat-engine"): deployment})
    assert condition(planned(world), "Progressing")[2].endswith("; exceeded quota: gpus")


def test_scaling_down_is_no_roll() -> None:
    world = edited(serving(spec(replicas=2)), replicas=1)
    assert condition(planned(world), "Progressing") == ("True", "Complete", "1 replica of this generation")


def test_a_replica_that_is_missing_beside_one_that_serves_says_why() -> None:
    world = serving(spec(replicas=2))
    one, other, door = world.pods
    stuck = replace(other, ready=False, trouble=Trouble("Unschedulable", "1 Insufficient nvidia.com/gpu"))
    told = "1 of 2 replicas is ready; chat-engine-1: 1 Insufficient nvidia.com/gpu"
    found = planned(replace(world, pods=(one, stuck, door)))
    assert condition(found, "Available") == ("True", "Serving", told)


def test_a_model_that_does_not_fit_turns_every_condition_that_it_keeps_from_being_true() -> None:
    found = planned(observed(spec(REAL), model=LLAMA_70B))
    for kind in ("Ready", "Available", "ModelFits", "Progressing"):
        assert condition(found, kind)[:2] == ("False", "DoesNotFit")
    assert condition(found, "ModelLoaded")[0] == "Unknown"
    assert [(one.type, one.reason) for one in found.announcements] == [("Warning", "DoesNotFit")]


def test_every_condition_is_there_once_with_its_generation_and_the_schema_takes_the_status() -> None:
    found = planned(replace(with_pods(pod(figures=figures()), router()), service=with_pods().service))
    assert found.status is not None
    parsed = InferenceServiceStatus.model_validate(found.status)
    assert tuple(entry.type for entry in parsed.conditions) == CONDITIONS
    assert {entry.observed_generation for entry in parsed.conditions} == {1}


def test_times_change_only_with_the_status_of_their_condition() -> None:
    world = with_status(with_pods(pod(ready=False), router()))
    later = NOW + timedelta(minutes=5)
    found = planned(
        replace(world, pods=(*with_pods(pod(ready=False, figures=loading("kv", 0.9))).pods, router())), now=later
    )
    assert found.status is not None
    times = {entry["type"]: entry["lastTransitionTime"] for entry in found.status["conditions"]}
    assert times["Ready"] == "2026-11-29T12:00:00Z"  # its reason changed, its status didn't
    assert times["ModelLoaded"] == "2026-11-29T12:05:00Z"


def test_the_status_has_counts_selector_url_and_figures() -> None:
    ready = pod(figures=figures(live_blocks=250, notes=("the longest request is 8000",)))
    gone = pod("gone", deleting=True)
    world = with_pods(ready, pod("b", ready=False), pod("old", template_hash="older"), gone, router(), replicas=2)
    status = planned(world).status
    assert status is not None
    assert (status["replicas"], status["updatedReplicas"], status["readyReplicas"]) == (3, 2, 2)
    assert status["ready"] == "2/2"
    assert status["selector"] == "pagefleet.dev/service=chat,pagefleet.dev/component=engine"
    assert status["url"] == "http://chat.prod.svc:8000"
    assert status["model"] == "chat"
    assert status["kv"] == {
        "bytesPerToken": 131072,
        "blocks": 1000,
        "tokens": 16000,
        "sequences": 2,
        "usedPercent": 25,
    }
    effective = status["effective"]
    assert (effective["maxLength"], effective["dtype"], effective["blockSize"]) == (8000, "bfloat16", 16)
    assert effective["notes"] == ["the longest request is 8000"]
    assert "quantization" not in effective


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        ((), "int8"),
        ((pod(figures=figures(quantization="int8")),), "int8"),
        ((pod(figures=figures(quantization="none")),), None),
        ((pod(figures=figures(quantization=None)),), "int8"),  # an older image's
    ],
)
def test_the_weights_quantization_is_what_replicas_have_or_else_what_is_asked(
    replicas: tuple[Pod, ...], told: str | None
) -> None:
    model = {"uri": "simulated://llama-3.1-8b", "quantization": "int8"}
    status = planned(with_pods(*replicas, model=model)).status
    assert status is not None and status["effective"].get("quantization") == told


def test_what_this_version_does_not_do_stands_in_the_notes() -> None:
    world = with_pods(kvCache={"swap": {"mode": "Host", "hostMemory": "8Gi"}}, routing={"mode": "PrefixAware"})
    status = planned(world).status
    assert status is not None
    assert status["effective"]["swapMode"] == "Recompute"
    assert status["effective"]["routingMode"] == "LeastPressure"
    assert [note.split(";")[0] for note in status["effective"]["notes"]] == [
        "kvCache.swap.mode is Host",
        "kvCache.swap.hostMemory is 8Gi",
        "routing.mode is PrefixAware",
    ]


def test_figures_that_cannot_be_read_only_degrade_the_kv_figures() -> None:
    world = serving()
    (ready, door) = world.pods
    found = planned(replace(world, pods=(replace(ready, figures=None, figures_fault="no answer within 3 s"), door)))
    assert found.status is not None
    assert condition(found, "Ready")[0] == "True"
    assert found.status["kv"]["unreadReplicas"] == 1
    assert found.status["kv"]["blocks"] == 1000
    assert "usedPercent" not in found.status["kv"]
    assert found.status["effective"] == world.service.status["effective"]


def test_what_a_newer_operator_wrote_is_no_stumbling_block() -> None:
    world = serving()
    (ready, door) = world.pods
    status = {**world.service.status, "kv": {**world.service.status["kv"], "novel": 1}}
    status["effective"] = {**status["effective"], "novel": 1}
    unread = replace(ready, figures=None, figures_fault="no answer")
    world = replace(world, service=replace(world.service, status=status), pods=(unread, door))
    found = planned(world)
    assert found.status is not None
    assert "novel" not in found.status["kv"] and "novel" not in found.status["effective"]
    invalid = planned(replace(world, service=replace(world.service, spec=None, refusal="spec.x: no")))
    assert invalid.status is not None and "novel" not in invalid.status["effective"]


def test_words_without_end_are_cut_to_what_the_schema_takes() -> None:
    notes = tuple(f"{index} {'x' * 3000}" for index in range(40))
    endless = troubled("CrashLoopBackOff", "x" * 2000, "y" * 63)
    old = pod("old", template_hash="older")
    world = with_pods(old, endless, pod("read", figures=figures(notes=notes)), router(), replicas=3)
    status = planned(world, settings(podMonitors="Enabled")).status
    assert status is not None
    InferenceServiceStatus.model_validate(status)
    assert len(status["effective"]["notes"]) == 32
    assert len(status["rollout"]["holding"]) == 2048


def test_a_pod_that_has_failed_for_good_counts_for_nothing_and_says_why_where_no_other_is_there() -> None:
    evicted = replace(troubled("Evicted", "The node was low on resource: memory."), finished=True)
    found = planned(with_pods(evicted, router()))
    assert found.status is not None
    assert (found.status["replicas"], found.status["updatedReplicas"]) == (0, 0)
    assert condition(found, "Available")[:2] == ("False", "Evicted")
    assert condition(planned(with_pods(evicted, pod("new", ready=False), router())), "Available")[1] == "Starting"
