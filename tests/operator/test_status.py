"""What the status says, when it is written, and which events it makes."""

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
    all_live,
    applied,
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
    with_status,
)


def with_pods(*pods: Pod, replicas: int = 1, **fields: Any) -> Observed:
    """Return a service whose children are there, made long ago, with these pods; those without a hash are current."""
    wanted = spec(replicas=replicas, **fields)
    children = all_live(applied(planned(observed(wanted))))
    hashed = template_hash(children)
    current = tuple(
        one if one.template_hash or one.component == "router" else replace(one, template_hash=hashed) for one in pods
    )
    return observed(wanted, children, current)


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
    assert condition(found, "Progressing")[1] == "Complete"
    assert condition(found, "Available")[2] == "1 of 2 replicas is ready"


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


def test_what_this_version_does_not_do_stands_in_the_notes() -> None:
    world = with_pods(kvCache={"swap": {"mode": "Host", "hostMemory": "8Gi"}}, routing={"mode": "PrefixAware"})
    status = planned(world).status
    assert status is not None
    assert status["effective"]["swapMode"] == "Recompute"
    assert status["effective"]["routingMode"] == "LeastPressure"
    assert [note.split(";")[0] for note in status["effective"]["notes"]] == [
        "kvCache.swap.mode is Host",
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


# --- when it is written


@pytest.mark.parametrize(
    ("live_blocks", "seconds", "written"), [(44, 1, False), (50, 1, True), (10, 61, True), (0, 61, False)]
)
def test_a_moving_share_is_written_on_five_points_or_once_in_a_while(
    live_blocks: int, seconds: int, written: bool
) -> None:
    world = serving()
    (ready, door) = world.pods
    moved = replace(ready, figures=replace(ready.figures or figures(), live_blocks=live_blocks))
    found = planned(replace(world, pods=(moved, door)), now=NOW + timedelta(seconds=seconds))
    assert (found.status is not None) is written
    if live_blocks and not written:
        assert found.again_in_seconds == settings().status_seconds - seconds


def test_the_first_status_of_a_service_that_starts_well_waits_for_news() -> None:
    found = planned(observed())
    assert found.status is None
    assert found.again_in_seconds == 20
    world = _made_now(with_pods(pod(ready=False)))
    assert planned(world, now=NOW + timedelta(seconds=5)).status is None
    assert planned(world, now=NOW + timedelta(seconds=5)).again_in_seconds == 15
    assert condition(planned(world, now=NOW + timedelta(seconds=21)), "Ready")[1] == "Starting"
    ready = replace(world, pods=(*with_pods(pod(figures=figures())).pods, router()))
    assert condition(planned(ready, now=NOW + timedelta(seconds=2)), "Ready")[0] == "True"


def test_a_first_status_waits_a_little_for_the_figures_of_a_ready_replica() -> None:
    world = _made_now(with_pods(pod(), router()))
    assert planned(world, now=NOW + timedelta(seconds=4)).status is None
    assert condition(planned(world, now=NOW + timedelta(seconds=5)), "Ready")[0] == "True"
    unread = _made_now(with_pods(pod(figures_fault="no answer"), router()))
    assert condition(planned(unread, now=NOW), "Ready")[0] == "True"


def test_a_first_status_with_bad_news_or_progress_does_not_wait() -> None:
    stuck = _made_now(with_pods(troubled("ErrImagePull", "no such image")))
    assert condition(planned(stuck, now=NOW), "Ready")[1] == "ErrImagePull"
    slow = _made_now(with_pods(pod(ready=False, figures=loading("weights", 0.1))))
    assert condition(planned(slow, now=NOW + timedelta(seconds=6)), "Ready")[1] == "Loading"
    assert planned(observed(spec(replicas=0))).status is not None


def test_defaults_of_the_schema_and_other_peoples_conditions_are_no_news() -> None:
    world = serving()
    foreign = {"type": "Budgeted", "status": "True", "reason": "Ok", "message": ""}
    there = {
        **world.service.status,
        "rollout": {"holding": "", "since": None},
        "conditions": [foreign, *world.service.status["conditions"]],
    }
    assert planned(replace(world, service=replace(world.service, status=there))).status is None


def test_a_new_generation_is_written_even_where_nothing_else_changes() -> None:
    found = planned(edited(serving(), serving={"startTimeoutSeconds": None}))
    assert found.status is not None
    assert found.status["observedGeneration"] == 2


# --- events


def test_a_start_makes_no_event() -> None:
    assert planned(observed()).announcements == ()
    starting = with_status(with_pods(pod(ready=False), router()))
    ready = planned(replace(starting, pods=(*with_pods(pod(figures=figures())).pods, router())))
    assert ready.status is not None
    assert ready.announcements == ()


def test_a_trouble_makes_one_event_and_its_end_another() -> None:
    world = serving()
    hashed = template_hash(world.children)
    broken = replace(world, pods=(troubled("CrashLoopBackOff", "out of luck", template_hash=hashed), router()))
    found = planned(broken)
    assert [(one.type, one.reason) for one in found.announcements] == [("Warning", "CrashLoopBackOff")]
    broken = with_status(broken)
    assert planned(broken).announcements == ()
    more = planned(replace(broken, pods=(*broken.pods, pod("another", ready=False, template_hash=hashed))))
    assert more.status is not None and more.announcements == ()
    mended = planned(replace(broken, pods=world.pods))
    assert [(one.type, one.reason) for one in mended.announcements] == [("Normal", "Recovered")]


def test_a_roll_is_announced_at_its_start_with_what_changed_and_at_its_end() -> None:
    world = serving()
    rolling = edited(world, kvCache={"blockSize": 32})
    (started,) = planned(rolling).announcements
    assert started.reason == "RollingOut"
    assert started.message == "the replicas are replaced: kvCache.blockSize goes from 16 to 32"
    (started,) = planned(edited(world, image="mine:2")).announcements
    assert started.message.endswith("image is pagefleet:0.1.0, not mine:2")
    rolled = after(rolling, planned(rolling))
    new = pod("new", template_hash=template_hash(rolled.children), figures=world.pods[0].figures)
    rolled = with_status(replace(rolled, pods=(new, *world.pods)))
    draining = planned(replace(rolled, pods=(new, replace(world.pods[0], deleting=True), world.pods[-1])))
    assert condition(draining, "Progressing")[1] == "RollingOut"
    assert draining.status is not None
    assert draining.status["rollout"]["holding"] == "chat-engine-0 finishes its requests"
    ended = planned(replace(rolled, pods=(new, world.pods[-1])))
    assert [(one.type, one.reason) for one in ended.announcements] == [("Normal", "Complete")]
    assert planned(with_status(replace(rolled, pods=(new, world.pods[-1])))).announcements == ()


def test_a_roll_that_changes_much_names_the_first_and_counts_the_rest() -> None:
    changed = {"kvCache": {"blockSize": 32, "dtype": "float32", "prefixSharing": {"mode": "Disabled"}}}
    changed |= {"model": {"uri": "hf://acme/other", "maxLength": 9}, "serving": {"stallLimitSeconds": 9}}
    (started,) = planned(edited(serving(), **changed)).announcements
    assert "kvCache.blockSize goes from 16 to 32, kvCache.dtype goes from auto to float32" in started.message
    assert "model.maxLength goes from None to 9" in started.message
    assert started.message.endswith(" and 1 more")


def _made_now(world: Observed) -> Observed:
    deployment = engine(world.children)
    metadata = {**deployment["metadata"], "creationTimestamp": "2026-11-29T12:00:00Z"}
    return replace(
        world, children={**world.children, ("Deployment", "chat-engine"): {**deployment, "metadata": metadata}}
    )
