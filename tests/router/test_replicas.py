"""What a pod says about a replica, and who gets a request."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.openai_error import CODE_ENGINE_FAILED, CODE_QUEUE_FULL
from pagefleet_router.choice import REASON_CONNECT, REASON_RESET, may_retry, pick, retry_reason, shun_seconds
from pagefleet_router.fleet import Fleet
from pagefleet_router.replicas import STATES, PodList, Replica, replica_of
from tests.router.pods import pod


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ready"),
        ({"ready": False}, "unready"),
        ({"address": None}, "unready"),
        ({"deleting": True}, "draining"),
        ({"deleting": True, "ready": False}, "draining"),
        ({"drain": True}, "draining"),
        ({"address": "fd00::1"}, "ready"),
    ],
)
def test_a_pod_is_ready_draining_or_neither(changes: dict[str, Any], state: str) -> None:
    found = replica_of(pod("chat-1", **changes))
    assert found == Replica("uid-chat-1", "chat-1", changes.get("address", "10.0.0.1") or "", state)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_is_no_replica(phase: str) -> None:
    assert replica_of(pod("chat-1", phase=phase)) is None


def test_a_pod_just_created_has_no_status_and_is_unready() -> None:
    found = replica_of({"metadata": {"name": "chat-1", "uid": "u"}})
    assert found == Replica("u", "chat-1", "", "unready")


def test_events_change_the_list() -> None:
    pods = PodList([pod("b"), pod("a")])
    assert [replica.name for replica in pods.replicas()] == ["a", "b"]
    pods.apply("MODIFIED", pod("a", deleting=True))
    pods.apply("ADDED", pod("c", ready=False))
    pods.apply("MODIFIED", pod("b", phase="Failed"))
    assert [(replica.name, replica.state) for replica in pods.replicas()] == [("a", "draining"), ("c", "unready")]
    pods.apply("DELETED", pod("a"))
    pods.apply("DELETED", pod("never seen"))
    assert [replica.name for replica in pods.replicas()] == ["c"]


STATE = st.sampled_from(STATES)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Replica], dict[str, int], set[str], set[str]]:
    states = draw(st.lists(STATE, max_size=8))
    replicas = [Replica(str(i), str(i), f"10.0.0.{i}", state) for i, state in enumerate(states)]
    uids = [replica.uid for replica in replicas]
    some = st.sets(st.sampled_from(uids)) if uids else st.just(set[str]())
    return replicas, {uid: draw(st.integers(0, 3)) for uid in uids}, draw(some), draw(some)


@given(situations(), st.integers())
def test_the_choice_is_ready_untried_and_the_least_busy_and_shunned_only_if_all_are(
    situation: tuple[list[Replica], dict[str, int], set[str], set[str]], seed: int
) -> None:
    replicas, in_flight, shunned, tried = situation
    chosen = pick(replicas, in_flight, shunned, tried, random.Random(seed).choice)
    candidates = [replica for replica in replicas if replica.state == "ready" and replica.uid not in tried]
    if chosen is None:
        assert not candidates
        return
    assert chosen in candidates
    equals = [other for other in candidates if (other.uid in shunned) == (chosen.uid in shunned)]
    assert in_flight[chosen.uid] == min(in_flight[other.uid] for other in equals)
    assert chosen.uid not in shunned or all(other.uid in shunned for other in candidates)


def test_among_equals_the_lot_decides() -> None:
    replicas = [Replica(str(i), str(i), "10.0.0.1", "ready") for i in range(4)]
    draw = random.Random(1).choice
    chosen = [pick(replicas, {}, (), (), draw) for _ in range(400)]
    assert all(70 < chosen.count(replica) < 130 for replica in replicas)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (503, "draining", "draining"),
        (429, "queue_full", "queue_full"),
        (503, "queue_full", None),
        (429, "draining", None),
        (503, "queue_timeout", None),
        (500, "draining", None),
        (503, None, None),
        (503, ["draining"], None),
        (200, "draining", None),
    ],
)
def test_only_refusals_of_the_moment_are_retried(status: int, code: object, reason: str | None) -> None:
    assert retry_reason(status, code) == reason


@pytest.mark.parametrize(
    ("reasons", "most", "may"),
    [
        ([REASON_CONNECT], 0, False),
        ([REASON_CONNECT], 1, True),
        ([REASON_CONNECT, REASON_RESET], 1, False),
        ([REASON_CONNECT, REASON_RESET], 5, True),
        ([REASON_RESET, CODE_ENGINE_FAILED], 5, False),
        ([CODE_QUEUE_FULL], 5, True),
        ([CODE_QUEUE_FULL, REASON_CONNECT], 5, True),
        ([CODE_QUEUE_FULL, REASON_CONNECT, CODE_QUEUE_FULL], 5, False),
    ],
)
def test_tries_are_counted_and_a_full_queue_is_tried_once_more(reasons: list[str], most: int, may: bool) -> None:
    assert may_retry(reasons, most) is may


def test_a_replica_that_goes_on_failing_is_avoided_for_longer_and_one_success_forgives_it() -> None:
    assert [shun_seconds(failures) for failures in (1, 2, 3, 6, 99)] == [1.0, 2.0, 4.0, 30.0, 30.0]
    now = 0.0
    fleet = Fleet(lambda: now, seed=1)
    bad, good = (Replica(uid, uid, "10.0.0.1", "ready") for uid in ("bad", "good"))
    fleet.see((bad, good))

    def chosen() -> set[str]:
        picked = [fleet.pick(()) for _ in range(50)]
        return {replica.uid for replica in picked if replica is not None}

    fleet.failed(bad)
    assert chosen() == {"good"}
    now = 1.1
    assert chosen() == {"bad", "good"}
    fleet.failed(bad)
    now = 3.0
    assert chosen() == {"good"}
    fleet.answered(bad)
    assert chosen() == {"bad", "good"}
    fleet.failed(bad)
    fleet.see((good,))
    fleet.see((bad, good))
    assert chosen() == {"bad", "good"}
