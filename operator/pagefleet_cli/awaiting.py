"""Waiting for services, several at once: each is handed out when it is ready, and what keeps the others is said."""

import http.client
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pagefleet_cli.cluster import Cluster
from pagefleet_cli.console import Console
from pagefleet_cli.readiness import Readiness, readiness
from pagefleet_cli.services import check_devices, local_url
from pagefleet_contract.names import PATH_READY
from pagefleet_local.errors import FleetError
from pagefleet_local.waiting import attempts

Object = dict[str, Any]
Place = tuple[str, str]  # namespace and name
_PAUSE_SECONDS = 0.25
_ANSWER_SECONDS = 5


def place(service: Object) -> Place:
    return service["metadata"]["namespace"], service["metadata"]["name"]


def until_ready(
    places: Sequence[Place],
    look: Callable[[str, str], Object],
    judge: Callable[[Object], Readiness],
    seconds: float,
    console: Console,
) -> Iterator[Object]:
    """Yield each service once it is ready; raise with the words of all that aren't when time is up, and at once where
    waiting is of no use to any of them."""
    left = dict.fromkeys(places, Readiness(False, False, "not looked at yet"))
    for _ in attempts(seconds, _PAUSE_SECONDS):
        for where in [*left]:
            service = look(*where)
            left[where] = judge(service)
            if left[where].is_ready:
                del left[where]
                yield service
        waited_for = [f"{name}: {now.text}" for (_, name), now in left.items() if not now.refused]
        if not waited_for:
            break
        console.doing(waited_for[0] + (f" (and {len(waited_for) - 1} more)" if waited_for[1:] else ""))
    if left:
        raise FleetError(_why_not(left, seconds))


def judge_here(cluster: Cluster) -> Callable[[Object], Readiness]:
    """Return how a service of the local fleet is judged: this machine has its devices, and its address answers. What
    stands in its status may be from before the last `down`."""
    nodes = cluster.nodes()

    def judge(service: Object) -> Readiness:
        now = readiness(service)
        if not now.is_ready:
            return _without_devices(service, nodes) or now
        url = local_url(cluster, *place(service)) if service["spec"]["replicas"] else None
        said = fault_at(url) if url else None
        return Readiness(False, False, f"{url}: {said}") if said else now

    return judge


def fault_at(url: str) -> str | None:
    """Return why the address doesn't say that it serves; None where it does."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is this machine's own
    try:
        with direct.open(f"{url}{PATH_READY}", timeout=_ANSWER_SECONDS):
            return None
    except (OSError, http.client.HTTPException) as error:  # a refusal with a status is an OSError too
        return str(error)


def _without_devices(service: Object, nodes: Sequence[Object]) -> Readiness | None:
    try:
        check_devices(service, nodes)
    except FleetError as error:
        return Readiness(False, True, str(error))
    return None


def _why_not(left: Mapping[Place, Readiness], seconds: float) -> str:
    """Return a line for each service."""
    return "\n".join(
        f"{name} can't become ready: {now.text}"
        if now.refused
        else f"{name} is not ready after {seconds:.0f} s: {now.text}; see `pagefleet logs {name} -n {namespace}`"
        for (namespace, name), now in left.items()
    )
