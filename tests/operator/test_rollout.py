"""Rolls, run to their end in a toy cluster: what they never do, and where they end."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_operator.status import conditions_by_type
from tests.operator.builders import REAL, spec
from tests.operator.toy_cluster import ToyCluster

_SEEDS = st.integers(0, 2**32)
# A roll is a hundred plans.
_FEW = settings(max_examples=20, deadline=None)


@st.composite
def _services(draw: st.DrawFn) -> InferenceServiceSpec:
    surge, unavailable = draw(st.sampled_from([(1, 0), (2, 0), (0, 1), (1, 1), (3, 2)]))
    rollout = {"maxSurge": surge, "maxUnavailable": unavailable}
    return spec(REAL, replicas=draw(st.integers(0, 5)), rollout=rollout)


def _run_checked(cluster: ToyCluster, steps: int) -> None:
    """Let things happen in random order, and hold the invariants after each."""
    for _ in range(steps):
        there_before, ready_before = len(cluster.active), len(cluster.ready)
        move = cluster.random.randrange(3)
        if move == 0:
            cluster.reconcile()
        elif move == 1:
            cluster.control()
            most, fewest = cluster.bounds if cluster.deployment else (0, 0)
            assert len(cluster.active) <= max(most, there_before)
            assert len(cluster.ready) >= min(ready_before, fewest), "a roll took more than it may"
        else:
            cluster.advance(0.5)
        _check_strategy(cluster)


def _check_strategy(cluster: ToyCluster) -> None:
    """The Deployment replaces pods as the spec asks, or takes one down first because there is no room."""
    if cluster.deployment is None:
        return
    rolling = cluster.deployment["spec"]["strategy"]["rollingUpdate"]
    asked = cluster.spec.rollout
    used = (rolling["maxSurge"], rolling["maxUnavailable"])
    assert used in ((asked.max_surge, asked.max_unavailable), (0, 1))
    if used == (0, 1) and asked.max_unavailable == 0:
        assert cluster.gpus < cluster.spec.replicas + asked.max_surge + 5, "with room for all nothing goes first"


def _check_end(cluster: ToyCluster) -> None:
    hashed = cluster.hash_of_spec()
    assert [one.template_hash for one in cluster.pods] == [hashed] * cluster.spec.replicas
    assert cluster.reconcile().actions == ()
    assert cluster.reconcile().status is None
    rolling = cluster.deployment and cluster.deployment["spec"]["strategy"]["rollingUpdate"]
    asked = cluster.spec.rollout
    assert rolling == {"maxSurge": asked.max_surge, "maxUnavailable": asked.max_unavailable}
    assert sum(1 for child in cluster.children.values() if child.get("immutable")) == 1
    assert cluster.status["rollout"] == {"holding": ""}


@_FEW
@given(_services(), _SEEDS, st.integers(0, 4), st.lists(st.sampled_from([8, 32, 64]), min_size=1, max_size=3))
def test_any_roll_in_any_order_of_events_keeps_its_bounds_and_ends_at_the_last_edit(
    wanted: InferenceServiceSpec, seed: int, spare: int, block_sizes: list[int]
) -> None:
    cluster = ToyCluster(wanted, gpus=max(1, wanted.replicas) + spare, random=Random(seed))
    cluster.reconcile()
    cluster.settle()
    for size in block_sizes:
        cluster.edit(kvCache={"blockSize": size})
        _run_checked(cluster, steps=cluster.random.randrange(30))
    cluster.settle()
    _check_end(cluster)
    (left,) = [child for child in cluster.children.values() if child.get("immutable")]
    assert json.loads(left["data"]["engine.json"])["kvCache"]["blockSize"] == block_sizes[-1]


@_FEW
@given(_services(), _SEEDS, st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_scaling_in_the_middle_of_a_roll_ends_at_the_last_number(
    wanted: InferenceServiceSpec, seed: int, numbers: list[int]
) -> None:
    cluster = ToyCluster(wanted, gpus=7, random=Random(seed))
    cluster.settle()
    cluster.edit(kvCache={"blockSize": 32})
    for number in numbers:
        cluster.edit(replicas=number)
        _run_checked(cluster, steps=cluster.random.randrange(20))
    cluster.settle()
    _check_end(cluster)
    assert len(cluster.pods) == numbers[-1]


@_FEW
@given(st.integers(1, 3), st.integers(1, 3), _SEEDS)
def test_scaling_beyond_the_room_that_there_is_is_never_complete_and_says_what_is_missing(
    replicas: int, more: int, seed: int
) -> None:
    cluster = ToyCluster(spec(REAL, replicas=replicas), gpus=replicas, random=Random(seed))
    cluster.settle()
    cluster.edit(replicas=replicas + more)
    for _ in range(20):
        _run_checked(cluster, steps=1)
        if cluster.status["observedGeneration"] == cluster.generation:
            assert conditions_by_type(cluster.status)["Progressing"]["reason"] == "RollingOut"
    cluster.settle()
    told = conditions_by_type(cluster.status)["Progressing"]["message"]
    assert f"{replicas} of {replicas + more} replicas" in told and "Insufficient nvidia.com/gpu" in told
    assert cluster.status["ready"] == f"{replicas}/{replicas + more}"


@_FEW
@given(_SEEDS)
def test_with_room_for_one_more_never_a_replica_less_serves(seed: int) -> None:
    cluster = ToyCluster(spec(REAL, replicas=3), gpus=4, random=Random(seed))
    cluster.settle()
    cluster.edit(kvCache={"blockSize": 32})
    for _ in range(80):
        _run_checked(cluster, steps=1)
        assert len(cluster.ready) >= 3


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_start_that_goes_well_costs_one_apply_a_child_two_writes_of_status_and_no_event(replicas: int) -> None:
    cluster = ToyCluster(spec(REAL, replicas=replicas), gpus=replicas, random=Random(1))
    cluster.settle()
    applies = [action for plan in cluster.plans for action in plan.actions]
    assert len(applies) == len(cluster.children)
    statuses = [plan.status for plan in cluster.plans if plan.status is not None]
    assert len(statuses) <= 2  # ready, and the roll's end where the Deployment is seen later
    assert [one for plan in cluster.plans for one in plan.announcements] == []


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_an_operator_that_starts_anew_at_any_step_ends_the_roll_all_the_same(replicas: int) -> None:
    """Nothing is remembered between two looks, so a new operator is the same one; only the time of writing is lost."""
    for seed in range(0, 20, 3):
        cluster = ToyCluster(spec(REAL, replicas=replicas), gpus=replicas, random=Random(seed))
        cluster.settle()
        cluster.edit(kvCache={"blockSize": 32})
        _run_checked(cluster, steps=seed)
        cluster.status = {}
        cluster.settle()
        _check_end(cluster)
