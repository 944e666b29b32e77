"""When there shall be fewer replicas, the least busy ones go."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_operator.actions import AnnotatePod, Apply
from pagefleet_operator.observed import Pod
from pagefleet_operator.scale_down import deletion_costs
from tests.operator.builders import REAL, edited, figures, planned, pod, serving, spec
from tests.operator.toy_cluster import ToyCluster


def pods(*in_flight: int | None, costs: tuple[int | None, ...] = ()) -> tuple[Pod, ...]:
    read = [None if number is None else figures(in_flight=number) for number in in_flight]
    there = costs or (None,) * len(in_flight)
    return tuple(pod(f"p{index}", figures=one, deletion_cost=there[index]) for index, one in enumerate(read))


def written(actions: tuple[AnnotatePod, ...]) -> dict[str, str | None]:
    return {action.name: next(iter(action.annotations.values())) for action in actions}


def test_the_requests_in_flight_are_the_cost() -> None:
    assert written(deletion_costs(pods(3, 0, 7), 3, 1)) == {"p0": "3", "p2": "7"}


def test_a_replica_that_was_not_read_goes_last() -> None:
    assert written(deletion_costs(pods(3, None, 7), 3, 1)) == {"p0": "3", "p1": "8", "p2": "7"}


def test_nothing_is_written_where_it_changes_no_choice() -> None:
    assert deletion_costs(pods(3, 1), 2, 2) == ()
    assert deletion_costs(pods(3, 1), 2, 3) == ()
    assert deletion_costs(pods(3, 1), 2, 0) == ()
    assert deletion_costs(pods(0, 0), 2, 1) == ()
    assert deletion_costs(pods(None, None), 2, 1) == ()
    assert deletion_costs(pods(3, 1, costs=(9, 2)), 2, 1) == ()
    assert deletion_costs((), 2, 1) == ()


def test_costs_that_lead_to_another_choice_are_replaced() -> None:
    assert written(deletion_costs(pods(3, 1, 1, costs=(4, 5, 1)), 3, 2)) == {"p0": "3", "p1": "1"}


def test_costs_are_written_before_the_deployment_goes_down() -> None:
    world = serving(spec(replicas=2))
    numbers = zip(world.pods, (5, 4), strict=False)
    busy = tuple(replace(one, figures=replace(one.figures, in_flight=number)) for one, number in numbers if one.figures)
    kinds = [type(action) for action in planned(edited(replace(world, pods=busy), replicas=1)).actions]
    assert kinds == [AnnotatePod, AnnotatePod, Apply]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.integers(1, 5), st.integers(0, 1000))
def test_the_least_busy_replicas_go(in_flight: list[int], stay: int, seed: int) -> None:
    cluster = ToyCluster(spec(REAL, replicas=len(in_flight)), gpus=9, random=Random(seed))
    cluster.settle()
    for one, number in zip(cluster.pods, in_flight, strict=True):
        one.in_flight = number
    cluster.edit(replicas=min(stay, len(in_flight)))
    cluster.reconcile()
    cluster.control()
    left = sorted(one.in_flight for one in cluster.active)
    assert left == sorted(in_flight)[len(in_flight) - len(left) :]
