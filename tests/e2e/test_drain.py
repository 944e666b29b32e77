"""Streams that are open while replicas go (B16), and rolls where no accelerator is free (B06)."""

import time

import pytest

from pagefleet_contract.names import CONDITION_PROGRESSING, CONDITION_READY, KIND
from tests.e2e.cluster import Object, holds
from tests.e2e.fleet import Fleet
from tests.e2e.services import service, with_spec
from tests.e2e.traffic import started_clients, streams

pytestmark = pytest.mark.cluster

_GPU = "example.com/gpu"


def _settled(replicas: int, found: Object | None) -> bool:
    status = (found or {}).get("status") or {}
    return (
        holds(found, CONDITION_READY)
        and holds(found, CONDITION_PROGRESSING, "True", "Complete")
        and status.get("replicas") == status.get("readyReplicas") == status.get("updatedReplicas") == replicas
    )


@pytest.mark.parametrize("what", ["scale-down", "roll", "eviction"])
def test_b16_open_streams_end_normally_and_new_requests_find_a_replica(fleet: Fleet, namespace: str, what: str) -> None:
    manifest = service(namespace, replicas=2)
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("2 ready", KIND, namespace, "chat", lambda found: _settled(2, found))
    url = fleet.url(namespace, "chat")
    long = started_clients(url, "chat", 20, 400)
    fleet.wait_for_in_flight(namespace, "chat", 20)
    with streams(url, "chat", clients=1, max_tokens=4) as short:
        if what == "scale-down":
            fleet.cluster.scale(namespace, "chat", 1)
            wanted = 1
        elif what == "roll":
            fleet.cluster.apply(with_spec(manifest, kvCache={"budget": {"blocks": 600}}))
            wanted = 2
        else:
            fleet.evict(namespace, fleet.cluster.pods(namespace, "chat")[0]["metadata"]["name"])
            wanted = 2
        fleet.cluster.wait_for(what, KIND, namespace, "chat", lambda found: _settled(wanted, found), 150)
        long.join()
    assert not long.tally.faults
    assert long.tally.good == 20
    assert not short.faults
    assert short.good


def test_b16_a_stream_beyond_the_drain_limit_ends_with_an_error_event(fleet: Fleet, namespace: str) -> None:
    manifest = service(namespace, rollout={"drainTimeoutSeconds": 2}, model={"maxLength": 8000})
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("ready", KIND, namespace, "chat", lambda found: _settled(1, found))
    client = started_clients(fleet.url(namespace, "chat"), "chat", 1, 7000)
    fleet.wait_for_in_flight(namespace, "chat", 1)
    fleet.cluster.scale(namespace, "chat", 0)
    client.join(60)
    (fault,) = client.tally.faults
    assert fault.startswith("error event")


def test_idle_replicas_leave_within_three_seconds(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("ready", KIND, namespace, "chat", lambda found: _settled(1, found))
    began = time.monotonic()
    fleet.cluster.scale(namespace, "chat", 0)
    fleet.cluster.wait("no pod", "Pod", namespace, lambda pods: not pods, 30, "pagefleet.dev/component=engine")
    assert time.monotonic() - began < 8  # the scale, the end within three seconds, the node's report


def test_b06_a_roll_ends_where_every_accelerator_is_in_use(fleet: Fleet, namespace: str) -> None:
    with fleet.extended_resource(_GPU, 2):
        manifest = service(namespace, replicas=2, accelerator={"resource": _GPU, "count": 1, "memory": "8Gi"})
        fleet.cluster.apply(manifest)
        fleet.cluster.wait_for("2 ready", KIND, namespace, "chat", lambda found: _settled(2, found))
        fleet.cluster.apply(with_spec(manifest, kvCache={"budget": {"blocks": 600}}))
        fleet.cluster.wait_for(
            "what holds the roll",
            KIND,
            namespace,
            "chat",
            lambda found: _GPU in (((found or {}).get("status") or {}).get("rollout") or {}).get("holding", ""),
        )
        fleet.cluster.wait_for("the roll's end", KIND, namespace, "chat", lambda found: _settled(2, found), 120)
        before = {pod["metadata"]["uid"] for pod in fleet.cluster.pods(namespace, "chat")}
        fleet.cluster.apply(
            with_spec(
                manifest, kvCache={"budget": {"blocks": 600}}, autoscaling={"class": "External", "maxReplicas": 4}
            )
        )
        fleet.cluster.wait_for("generation 3", KIND, namespace, "chat", lambda found: _settled(2, found))
        assert {pod["metadata"]["uid"] for pod in fleet.cluster.pods(namespace, "chat")} == before
