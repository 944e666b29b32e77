"""What the commands do with services that exist: wait for them, follow their logs, and say where they answer."""

import json
import queue
import shlex
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pagefleet_cli.cluster import Cluster, NotFound
from pagefleet_cli.console import Console
from pagefleet_cli.printing import counted
from pagefleet_contract.inferenceservice import CPU
from pagefleet_contract.known_models import is_simulated
from pagefleet_contract.names import COLUMN_URL, HTTP_PORT, KIND
from pagefleet_local.errors import FleetError
from pagefleet_local.waiting import attempts

Object = dict[str, Any]
_PAUSE_SECONDS = 0.25
_WATCH_SECONDS = 1.0


def table(cluster: Cluster, namespace: str | None, names: Sequence[str]) -> Object:
    """Return these services as the server's table; all that are there if none is named."""
    found = [cluster.table(namespace, name) for name in names] or [cluster.table(namespace)]
    return found[0] | {"rows": [row for each in found for row in each["rows"]]}


def tables(cluster: Cluster, namespace: str | None, names: Sequence[str], first: Object) -> Iterator[Object]:
    """Yield the first table, and then what has become of it, for ever; a service that is gone is no error here."""
    yield first
    while True:
        time.sleep(_WATCH_SECONDS)
        now = cluster.table(namespace)
        rows = [row for row in now["rows"] if not names or row["object"]["metadata"]["name"] in names]
        yield now | {"rows": rows}


def wait_until_gone(cluster: Cluster, namespace: str, name: str, seconds: float, console: Console) -> None:
    """Return when neither the service nor a pod of it is left."""
    left = "not looked at yet"
    for _ in attempts(seconds, _PAUSE_SECONDS):
        service, pods = _service(cluster, namespace, name), cluster.pods(namespace, name)
        if service is None and not pods:
            return
        left = what_is_left(service, pods)
        console.doing(f"{name}: {left}")
    raise FleetError(
        f"{name} is not gone after {seconds:.0f} s: {left}; see `pagefleet kubectl get pods -n {namespace}`"
    )


def what_is_left(service: Object | None, pods: Sequence[Object]) -> str:
    """Return what of a deleted service is still there, and who holds it."""
    objects = [*([(KIND, service)] if service else []), *(("pod", pod) for pod in pods)]
    held = [
        f"the {kind} {each['metadata']['name']} is held by the finalizers {', '.join(finalizers)}"
        for kind, each in objects
        if (finalizers := each["metadata"].get("finalizers"))
    ]
    if not held:
        return f"{counted(len(pods), 'pod')} left"
    return f"{'; '.join(held)}, which go when what has set them takes them away"


def _service(cluster: Cluster, namespace: str, name: str) -> Object | None:
    try:
        return cluster.services(namespace, name)
    except NotFound:
        return None


def check_devices(service: Object, nodes: Sequence[Object]) -> None:
    """Raise where a model that is only played asks for devices that the machine doesn't offer: nobody will add them."""
    spec = service["spec"]
    resource, wanted = spec["accelerator"]["resource"], spec["accelerator"]["count"] * spec["replicas"]
    if resource == CPU or not is_simulated(spec["model"]["uri"]):
        return
    offered = sum(int(node["status"].get("allocatable", {}).get(resource, 0)) for node in nodes)
    if offered < wanted:
        raise FleetError(
            f"{service['metadata']['name']} asks for {wanted} of {resource}, and this machine offers {offered}; its"
            f" model is only played, so `pagefleet up --pretend {resource}={wanted}` is enough, or accelerator.resource"
            f" {CPU}"
        )


def local_url(cluster: Cluster, namespace: str, name: str) -> str | None:
    """Return where this machine reaches the service of a local fleet."""
    door = cluster.front_door(namespace, name)
    return _url(door) if door else None


def with_local_urls(cluster: Cluster, namespace: str | None, shown: Object) -> Object:
    """Return the table with the addresses that this machine reaches; those in the status are for pods."""
    doors = {_place(door): door for door in cluster.front_doors(namespace)}
    names = [column["name"] for column in shown["columnDefinitions"]]
    at = names.index(COLUMN_URL)

    def row_here(row: Object) -> Object:
        door = doors.get(_place(row["object"]))
        return row | {"cells": [*row["cells"][:at], _url(door), *row["cells"][at + 1 :]]} if door else row

    return shown | {"rows": [row_here(row) for row in shown["rows"]]}


def _url(door: Object) -> str:
    return f"http://{door['spec']['clusterIP']}:{HTTP_PORT}"


def _place(found: Object) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def settled(service: Object, url: str | None) -> str:
    """Return what has become of a service that is as its spec wants it."""
    name = service["metadata"]["name"]
    if not service["spec"]["replicas"]:
        return f"{name} is stopped (0 replicas); `pagefleet scale {name} 1` starts it"
    return f"{name} is ready at {url}" if url else f"{name} is ready"


def running(found: Object) -> list[Object]:
    """Return the services of a list that are to serve: with replicas, and not being deleted."""
    return [
        each for each in found["items"] if each["spec"]["replicas"] and not each["metadata"].get("deletionTimestamp")
    ]


def curl(url: str, service: Object) -> str:
    """Return a command that asks the service something, ready to be pasted."""
    spec = service["spec"]
    model = spec["model"].get("servedName") or service["metadata"]["name"]
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "What is a poem?"}], "max_tokens": 64})
    key = ' -H "authorization: Bearer $API_KEY"' if spec.get("tenancy", {}).get("apiKeysSecret") else ""
    host = urlsplit(url).hostname or ""
    direct = " --noproxy '*'" if "http" in urllib.request.getproxies() and not urllib.request.proxy_bypass(host) else ""
    return f"curl{direct} {url}/v1/chat/completions -H 'content-type: application/json'{key} -d {shlex.quote(body)}"


def has_started(pod: Object) -> bool:
    """Return whether a container of the pod runs or has run: without one, there is no log."""
    containers = pod.get("status", {}).get("containerStatuses", [])
    told = [each.get(kind) or {} for each in containers for kind in ("state", "lastState")]
    return any("running" in each or "terminated" in each for each in told)


def logs(
    cluster: Cluster, namespace: str, pods: Sequence[Object], query: Mapping[str, str], *, follow: bool
) -> Iterator[str]:
    """Yield the lines of the pods' logs: one pod after the other, or as they come when they are followed."""
    names = [str(pod["metadata"]["name"]) for pod in pods]
    prefixes = {name: f"{name} | " if len(names) > 1 else "" for name in names}
    if not follow:
        for name in names:
            yield from (f"{prefixes[name]}{line}" for line in cluster.log_lines(namespace, name, query))
        return
    lines: queue.SimpleQueue[str | FleetError | None] = queue.SimpleQueue()

    def pump(name: str) -> None:
        try:
            for line in cluster.log_lines(namespace, name, {**query, "follow": "true"}):
                lines.put(f"{prefixes[name]}{line}")
            lines.put(None)
        except FleetError as error:
            lines.put(error)

    for name in names:
        threading.Thread(target=pump, args=(name,), daemon=True).start()
    num_open = len(names)
    while num_open:
        line = lines.get()
        if isinstance(line, FleetError):
            raise line
        if line is None:
            num_open -= 1
        else:
            yield line


def elapsed(since: float) -> str:
    return f"{time.monotonic() - since:.1f} s"
