"""ClusterIPs on the process node: under load while pods are replaced, with many connections, and their ends."""

import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.local.node.nodes import (
    RunningNode,
    deployment,
    eventually,
    is_ready,
    pod,
    service,
    web,
)

pytestmark = pytest.mark.cluster

# Answers each connection with its own address and the number of bytes that came before the client's end.
COUNTER = """
import os, socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        n = len(self.rfile.read())
        self.wfile.write(f"{os.environ['POD_IP']} {n}\\n".encode())
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 1024
    daemon_threads = True
Server((os.environ["PAGEFLEET_LISTEN_ADDRESS"], 9000), Handler).serve_forever()
"""


def counter(**more: object) -> dict[str, object]:
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    probe = {"tcpSocket": {"port": 9000}, "periodSeconds": 1}
    return {"command": ["python", "-c", COUNTER], "env": env, "readinessProbe": probe, **more}


def address_of(cluster: Cluster, namespace: str, name: str) -> str:
    found = cluster.get("Service", namespace, name)
    assert found
    return str(found["spec"]["clusterIP"])


def ask(address: str, port: int, data: bytes) -> str:
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
        return answer.decode()


def test_connections_are_spread_and_each_half_ends_by_itself(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("counter", namespace, 2, counter()))
    cluster.apply(service("counter", namespace, 9100, 9000))
    cluster.wait("two pods", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True, True])
    address = address_of(cluster, namespace, "counter")
    eventually("listening", lambda: _answers(address, 9100))
    data = b"x" * 300_000
    answers = [ask(address, 9100, data).split() for _ in range(10)]
    assert {count for _, count in answers} == {"300000"}
    assert sorted([a for a, _ in answers].count(each) for each in {a for a, _ in answers}) == [5, 5]


def _answers(address: str, port: int) -> bool:
    try:
        return bool(ask(address, port, b""))
    except OSError:
        return False


def test_no_request_is_lost_while_pods_are_rolled(cluster: Cluster, namespace: str) -> None:
    lifecycle = {"preStop": {"sleep": {"seconds": 1}}}
    cluster.apply(deployment("web", namespace, 2, web(lifecycle=lifecycle)))
    cluster.apply(service("web", namespace, 9200, "http"))
    cluster.wait("two pods", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True, True])
    address = address_of(cluster, namespace, "web")
    eventually("listening", lambda: _gets(address, 9200))
    first = {p["metadata"]["name"] for p in cluster.all("Pod", namespace)}
    failures: list[str] = []
    done, count = threading.Event(), [0]

    def load() -> None:
        while not done.is_set():
            try:
                urllib.request.urlopen(f"http://{address}:9200/", timeout=10).read()
                count[0] += 1
            except OSError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        cluster.apply(deployment("web", namespace, 2, web(port=8001, lifecycle=lifecycle)))
        cluster.wait(
            "two new pods alone",
            "Pod",
            namespace,
            lambda found: len(found) == 2 and all(is_ready(p) and p["metadata"]["name"] not in first for p in found),
        )
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == [] and count[0] > 20


def _gets(address: str, port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}:{port}/", timeout=5).close()
        return True
    except OSError:
        return False


def test_a_thousand_connections_at_once_are_answered_and_none_is_kept(
    cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    cluster.apply(deployment("counter", namespace, 1, counter()))
    cluster.apply(service("counter", namespace, 9300, 9000))
    cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
    address = address_of(cluster, namespace, "counter")
    eventually("listening", lambda: _answers(address, 9300))
    assert node.process
    files = Path(f"/proc/{node.process.pid}/fd")
    before = len(list(files.iterdir()))
    connections = [socket.create_connection((address, 9300), timeout=20) for _ in range(1000)]
    for connection in connections:
        connection.sendall(b"abc")
        connection.shutdown(socket.SHUT_WR)
    answers = {connection.makefile("rb").read().split()[1] for connection in connections}
    for connection in connections:
        connection.close()
    assert answers == {b"3"}
    eventually("all closed", lambda: len(list(files.iterdir())) <= before + 5)


def test_a_name_of_a_service_in_the_arguments_is_its_address(cluster: Cluster, namespace: str) -> None:
    cluster.apply(service("web", namespace, 9400, "http"))
    address = address_of(cluster, namespace, "web")
    show = "import sys; print(*sys.argv[1:])"
    url = f"http://web.{namespace}.svc.cluster.local:9400/v1"
    cluster.create(pod("asks", namespace, "python", "-c", show, url, "no.such.svc", spec={"restartPolicy": "Never"}))
    cluster.wait("end", "Pod", namespace, lambda found: bool(found) and found[0]["status"].get("phase") == "Succeeded")
    assert cluster.logs(namespace, "asks") == f"http://{address}:9400/v1 no.such.svc\n"


def test_a_service_without_ready_pods_refuses_connections(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web", namespace, 1, web()))
    cluster.apply(service("web", namespace, 9500, "http"))
    address = address_of(cluster, namespace, "web")
    eventually("an answer", lambda: _gets(address, 9500), 20)
    cluster.apply(deployment("web", namespace, 0, web()))
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)

    def refused() -> bool:
        try:
            socket.create_connection((address, 9500), timeout=5).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually("refused", refused)


def test_a_port_that_cannot_be_had_is_said_on_the_service_and_taken_when_it_is_free(
    cluster: Cluster, namespace: str
) -> None:
    cluster.apply(service("web", namespace, 9600, "http"))
    address = address_of(cluster, namespace, "web")
    with socket.create_server((address, 9600)):
        cluster.apply(deployment("web", namespace, 1, web()))
        events = cluster.wait(
            "event", "Event", namespace, lambda found: any(e["reason"] == "FailedToListen" for e in found)
        )
        assert any(f"{address}:9600" in e["message"] for e in events)
    eventually("an answer", lambda: _gets(address, 9600), 20)
