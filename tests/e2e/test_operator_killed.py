"""The operator is killed while it creates and while it rolls; services end where their specs say, and nobody waits."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pagefleet_contract.names import CONDITION_PROGRESSING, CONDITION_READY, KIND
from tests.e2e.cluster import Cluster, Object, holds
from tests.e2e.fleet import OPERATOR_SELECTOR, Fleet
from tests.e2e.services import service, with_spec
from tests.e2e.traffic import completion, streams

pytestmark = pytest.mark.cluster

_ROUNDS = 5  # each kills it twice in a creation and twice in a roll
# Creation and roll of a simulated service take about this long, and as long again until the next operator is at work.
_WINDOW_SECONDS = 6.0


def _settled(blocks: int, found: Object | None) -> bool:
    status = (found or {}).get("status") or {}
    return (
        holds(found, CONDITION_READY)
        and holds(found, CONDITION_PROGRESSING, "True", "Complete")
        and status.get("replicas") == status.get("readyReplicas") == status.get("updatedReplicas") == 2
        and (status.get("kv") or {}).get("blocks") == blocks
    )


def _kill_operator(cluster: Cluster, namespace: str) -> None:
    for pod in cluster.all("Pod", namespace, OPERATOR_SELECTOR):
        cluster.delete("Pod", namespace, pod["metadata"]["name"], gracePeriodSeconds=0)


@contextmanager
def _killed_twice(fleet: Fleet, moments: random.Random) -> Iterator[None]:
    """Kill the operator at two moments from the block's beginning on; return when both have passed."""
    arguments = (fleet.cluster, fleet.operator_namespace)
    timers = [threading.Timer(moments.uniform(0, _WINDOW_SECONDS), _kill_operator, arguments) for _ in range(2)]
    for timer in timers:
        timer.start()
    yield
    for timer in timers:
        timer.join()


def test_an_operator_killed_at_twenty_random_moments_finishes_what_it_began(fleet: Fleet, namespace: str) -> None:
    moments = random.Random(20)
    for turn in range(_ROUNDS):
        name = f"chat-{turn}"
        manifest = service(namespace, name, replicas=2)
        with _killed_twice(fleet, moments):
            fleet.cluster.apply(manifest)
        fleet.cluster.wait_for(f"{name} created", KIND, namespace, name, lambda now: _settled(512, now), 120)
        with streams(fleet.url(namespace, name), name, clients=2) as tally:
            with _killed_twice(fleet, moments):
                fleet.cluster.apply(with_spec(manifest, kvCache={"budget": {"blocks": 600}}))
            fleet.cluster.wait_for(f"{name} rolled", KIND, namespace, name, lambda now: _settled(600, now), 120)
        assert not tally.faults
        fleet.cluster.delete(KIND, namespace, name)


def test_services_answer_while_no_operator_runs_and_catch_up_when_one_does(fleet: Fleet, namespace: str) -> None:
    manifest = service(namespace, replicas=2)
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("ready", KIND, namespace, "chat", lambda now: _settled(512, now))
    with fleet.no_operator():
        fleet.cluster.apply(with_spec(manifest, kvCache={"budget": {"blocks": 600}}))
        fleet.cluster.apply(service(namespace, "gone"))
        fleet.cluster.delete(KIND, namespace, "gone")
        fleet.cluster.wait_for("no service", KIND, namespace, "gone", lambda now: now is None, 30)
        assert completion(fleet.url(namespace, "chat"), "chat")
    fleet.cluster.wait_for("rolled", KIND, namespace, "chat", lambda now: _settled(600, now), 120)
    assert not fleet.cluster.all("Deployment", namespace, "pagefleet.dev/service=gone")
