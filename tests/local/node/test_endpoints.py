"""Which pods take a Service's connections."""

import pytest

from pagefleet_local.node.endpoints import Backend, Listener, forwarding_table
from tests.e2e.cluster import Object
from tests.local.node.nodes import pod, service

CHAT = Listener("127.64.0.9", 8000, "ns", "chat")


def front(target: int | str = 8000, **spec: object) -> Object:
    made = service("chat", "ns", 8000, target)
    made["spec"] |= {"clusterIP": "127.64.0.9", **spec}
    return made


def replica(address: str, ready: bool = True, **metadata: object) -> Object:
    made = pod("chat", "ns", "true", ports=[{"name": "http", "containerPort": 8080}])
    made["metadata"] |= metadata
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    made["status"] = {"podIP": address, "phase": "Running", "conditions": conditions}
    return made


def test_ready_pods_take_connections() -> None:
    table = forwarding_table([front()], [replica("127.1.0.2"), replica("127.1.0.1"), replica("127.1.0.3", ready=False)])
    assert table == {CHAT: (Backend("127.1.0.1", 8000), Backend("127.1.0.2", 8000))}


@pytest.mark.parametrize(
    "other",
    [
        replica("127.1.0.1", deletionTimestamp="x"),
        replica("127.1.0.1", labels={"app": "other"}),
        replica("127.1.0.1", labels={}),
        replica("127.1.0.1", namespace="elsewhere"),
        replica("127.1.0.1", ready=False),
        replica("127.1.0.1") | {"status": {"phase": "Failed", "podIP": "127.1.0.1"}},
        replica("127.1.0.1") | {"status": {}},
    ],
)
def test_a_pod_that_ends_is_another_s_or_is_not_ready_takes_none(other: Object) -> None:
    assert forwarding_table([front()], [other]) == {CHAT: ()}


def test_a_target_may_be_the_name_of_a_port_and_each_pod_has_its_own() -> None:
    other = replica("127.1.0.2")
    other["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090
    nameless = replica("127.1.0.3")
    nameless["spec"]["containers"][0]["ports"] = []
    table = forwarding_table([front("http")], [replica("127.1.0.1"), other, nameless])
    assert table[CHAT] == (Backend("127.1.0.1", 8080), Backend("127.1.0.2", 9090))


def test_a_service_of_another_namespace_takes_its_own_pods() -> None:
    other = front()
    other["metadata"]["namespace"] = "elsewhere"
    table = forwarding_table([other], [replica("127.1.0.1"), replica("127.1.0.2", namespace="elsewhere")])
    assert list(table.values()) == [(Backend("127.1.0.2", 8000),)]


@pytest.mark.parametrize(
    "changed",
    [
        {"clusterIP": "None"},
        {"clusterIP": ""},
        {"clusterIP": "10.96.0.1"},
        {"selector": None},
        {"ports": [{"port": 53, "protocol": "UDP"}]},
    ],
)
def test_a_service_that_cannot_be_forwarded_is_left_out(changed: Object) -> None:
    assert forwarding_table([front(**changed)], [replica("127.1.0.1")]) == {}


def test_unready_pods_are_published_where_the_service_asks_for_it() -> None:
    table = forwarding_table([front(publishNotReadyAddresses=True)], [replica("127.1.0.1", ready=False)])
    assert table[CHAT] == (Backend("127.1.0.1", 8000),)


def test_each_port_has_its_own_listener() -> None:
    two = front(ports=[{"port": 8000}, {"port": 9000, "targetPort": "http"}])
    table = forwarding_table([two], [replica("127.1.0.1")])
    assert {listener.port: backends for listener, backends in table.items()} == {
        8000: (Backend("127.1.0.1", 8000),),
        9000: (Backend("127.1.0.1", 8080),),
    }
