"""When the status is written, and which events it makes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pagefleet_operator.observed import Observed, Pod
from tests.operator.builders import (
    NOW,
    after,
    condition,
    edited,
    engine,
    figures,
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


def test_other_numbers_in_what_is_said_about_a_trouble_are_written_once_in_a_while() -> None:
    broken = with_status(with_pods(troubled("CrashLoopBackOff", "no room for 31 MB"), router()))
    assert planned(broken, now=NOW + timedelta(seconds=9)).status is None
    again = replace(broken, pods=with_pods(troubled("CrashLoopBackOff", "no room for 32 MB"), router()).pods)
    found = planned(again, now=NOW + timedelta(seconds=9))
    assert (found.status, found.again_in_seconds) == (None, settings().status_seconds - 9)
    later = planned(again, now=NOW + timedelta(seconds=settings().status_seconds))
    assert "32 MB" in condition(later, "Ready")[2]
    another = replace(broken, pods=with_pods(troubled("OOMKilled", "no room for 31 MB"), router()).pods)
    assert condition(planned(another, now=NOW + timedelta(seconds=9)), "Ready")[1] == "OOMKilled"


def test_other_numbers_in_what_holds_a_roll_are_written_once_in_a_while() -> None:
    def held(words: str) -> Observed:
        stuck = troubled("CrashLoopBackOff", words)
        return with_pods(pod("old", template_hash="older"), stuck, router())

    rolling = with_status(held("no room for 31 MB"))
    soon = NOW + timedelta(seconds=9)
    assert planned(replace(rolling, pods=held("no room for 32 MB").pods), now=soon).status is None
    loading_again = replace(rolling, pods=(rolling.pods[0], *with_pods(pod(ready=False)).pods, router()))
    assert planned(loading_again, now=soon).status is not None


def test_b08_another_trouble_of_one_replica_beside_those_that_serve_is_told_at_once() -> None:
    def beside(missing: Pod) -> Observed:
        return with_pods(pod("chat-engine-z", created_seconds=1.0), missing, router(), replicas=2)

    waiting = with_status(beside(pod(ready=False)))
    soon = NOW + timedelta(seconds=9)
    broken = planned(replace(waiting, pods=beside(troubled("CrashLoopBackOff", "no model")).pods), now=soon)
    assert "no model" in condition(broken, "Available")[2]
    waiting = with_status(replace(waiting, pods=beside(troubled("CrashLoopBackOff", "no model")).pods))
    other = planned(replace(waiting, pods=beside(troubled("CrashLoopBackOff", "no disk")).pods), now=soon)
    assert "no disk" in condition(other, "Available")[2]


def test_progress_is_written_at_once() -> None:
    slow = with_status(with_pods(pod(ready=False, figures=loading("weights", 0.1)), router()))
    more = replace(slow, pods=(*with_pods(pod(ready=False, figures=loading("weights", 0.3))).pods, router()))
    assert "30 %" in condition(planned(more, now=NOW + timedelta(seconds=9)), "Ready")[2]


def _made_now(world: Observed) -> Observed:
    deployment = engine(world.children)
    metadata = {**deployment["metadata"], "creationTimestamp": "2026-11-29T12:00:00Z"}
    return replace(
        world, children={**world.children, ("Deployment", "chat-engine"): {**deployment, "metadata": metadata}}
    )
