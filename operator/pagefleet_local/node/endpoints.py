"""Where a Service's connections go: its address and port to the pods that are Ready, from the API's objects alone."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_local.node.pods import (
    Manifest,
    containers,
    init_containers,
    is_ready,
    is_sidecar,
    is_terminating,
    name_of,
    named_port,
    namespace_of,
)


@dataclass(frozen=True, order=True)
class Listener:
    """Where the node listens for one port of one Service."""

    address: str
    port: int
    namespace: str
    service: str


@dataclass(frozen=True, order=True)
class Backend:
    address: str
    port: int


def cluster_address(service: Manifest) -> str | None:
    """Return the address of the Service, where it has one."""
    address = service["spec"].get("clusterIP")
    return None if address in (None, "", "None") else str(address)


def forwarding_table(services: Iterable[Manifest], pods: Iterable[Manifest]) -> dict[Listener, tuple[Backend, ...]]:
    """Return, for each TCP port of each Service with a selector and a loopback address, the pods that take its
    connections now."""
    by_namespace: dict[str, list[Manifest]] = {}
    for pod in pods:
        by_namespace.setdefault(namespace_of(pod), []).append(pod)
    table: dict[Listener, tuple[Backend, ...]] = {}
    for service in services:
        address, selector = cluster_address(service), service["spec"].get("selector")
        if not address or not selector or not ipaddress.ip_address(address).is_loopback:
            continue
        chosen = [pod for pod in by_namespace.get(namespace_of(service), ()) if _takes(pod, service, selector)]
        for port in service["spec"].get("ports") or ():
            if port.get("protocol", "TCP") == "TCP":
                listener = Listener(address, int(port["port"]), namespace_of(service), name_of(service))
                table[listener] = tuple(sorted(b for pod in chosen if (b := _backend(pod, port))))
    return table


def _takes(pod: Manifest, service: Manifest, selector: Manifest) -> bool:
    labels = pod["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    if service["spec"].get("publishNotReadyAddresses"):
        return True
    return is_ready(pod) and not is_terminating(pod)


def _backend(pod: Manifest, port: Manifest) -> Backend | None:
    address = (pod.get("status") or {}).get("podIP")
    target: int | str = port.get("targetPort") or port["port"]
    numbers = (named_port(c, target) for c in [*containers(pod), *filter(is_sidecar, init_containers(pod))])
    number = next((n for n in numbers if n), None)
    return Backend(address, number) if address and number else None
