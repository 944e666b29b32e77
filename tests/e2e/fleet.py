"""An installed pagefleet on some cluster, as the end-to-end suite uses it."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from pagefleet_contract.metrics import ROUTER_IN_FLIGHT
from pagefleet_contract.names import COMPONENT_OPERATOR, HTTP_PORT, LABEL_COMPONENT
from pagefleet_local.commands import Commands
from tests.e2e.cluster import Cluster
from tests.e2e.traffic import chat_body, wait_until_reachable

OPERATOR_SELECTOR = f"{LABEL_COMPONENT}={COMPONENT_OPERATOR}"


@dataclass(frozen=True)
class Fleet:
    cluster: Cluster
    operator_namespace: str
    commands: Commands

    def url(self, namespace: str, service: str) -> str:
        """Return where this machine reaches the service, its ClusterIP, once it is reached there.

        A node learns of a ready router a moment after the operator does.
        """
        found = self.cluster.wait_for("a Service", "Service", namespace, service, lambda now: now is not None)
        url = f"http://{found['spec']['clusterIP']}:{HTTP_PORT}"
        wait_until_reachable(url)
        return url

    def post(self, url: str, model: str) -> httpx2.Response:
        """Return the answer to one short chat request, whatever it is."""
        return httpx2.post(f"{url}/v1/chat/completions", json=chat_body(model, 4), timeout=60)

    def wait_for_in_flight(self, namespace: str, service: str, count: int, seconds: float = 30) -> None:
        """Return once the service's router has at least `count` requests in flight."""
        deadline = time.monotonic() + seconds
        while self._in_flight(self.url(namespace, service)) < count:
            assert time.monotonic() < deadline, f"never {count} requests in flight within {seconds:g} s"
            time.sleep(0.05)

    def _in_flight(self, url: str) -> int:
        page = httpx2.get(f"{url}/metrics", timeout=5).text
        return sum(int(float(value)) for value in re.findall(rf"^{ROUTER_IN_FLIGHT.name}\S* (\S+)$", page, re.M))

    def evict(self, namespace: str, pod: str) -> None:
        """What `kubectl drain` does to each pod of a node."""
        self.cluster.evict(namespace, pod)

    @contextmanager
    def extended_resource(self, name: str, count: int) -> Iterator[None]:
        """Give the first node some of a made-up accelerator."""
        node = self.cluster.all("Node")[0]["metadata"]["name"]
        self.cluster.set_capacity(node, name, count)
        try:
            yield
        finally:
            self.cluster.set_capacity(node, name, None)

    @contextmanager
    def no_operator(self) -> Iterator[None]:
        """Take the operator away for a while."""
        (deployment,) = self.cluster.all("Deployment", self.operator_namespace, OPERATOR_SELECTOR)
        name, replicas = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        self._scale_operator(name, 0)
        try:
            yield
        finally:
            self._scale_operator(name, replicas)

    def _scale_operator(self, name: str, replicas: int) -> None:
        namespace = self.operator_namespace
        self.cluster.patch("Deployment", namespace, name, {"spec": {"replicas": replicas}})
        self.cluster.wait(
            f"{replicas} operators", "Pod", namespace, lambda pods: len(pods) == replicas, 60, OPERATOR_SELECTOR
        )
