"""The rights of the contract's table are those that a service's life uses: none is missing and none is beyond."""

import re
from collections.abc import Iterable

import pytest

from pagefleet_contract.names import KIND, PLURAL
from pagefleet_contract.rights import OPERATOR_RIGHTS, Right
from tests.e2e.api_faults import FaultyApi, Request, faulty_api, is_list, is_watch
from tests.e2e.cluster import Cluster, holds
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, wait_until
from tests.operator.cluster.pods import make_ready
from tests.operator.replica_server import STATE_PAGE, replica

pytestmark = pytest.mark.cluster

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+/namespaces/[^/]+/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
# Nothing asks for it but the admission plug-in of clusters that guard owner references.
_NEVER_REQUESTED = {("pagefleet.dev", f"{PLURAL}/finalizers", "update")}


def _verb(request: Request, name: str | None) -> str:
    if is_watch(request):
        return "watch"
    return _VERBS.get(request.method) or ("get" if name else "list")


def _used(requests: Iterable[Request]) -> set[tuple[str, str, str]]:
    found = set()
    for request in requests:
        match = _PATH.fullmatch(request.path)
        if match:
            resource = match["resource"] + (f"/{match['sub']}" if match["sub"] else "")
            found.add((match["group"] or "", resource, _verb(request, match["name"])))
            if request.method == "PATCH" and request.status == 201:  # an apply that made the object
                found.add((match["group"] or "", resource, "create"))
    return found


def _granted(rights: Iterable[Right]) -> set[tuple[str, str, str]]:
    return {
        (right.group, resource, verb)
        for right in rights
        if not right.optional
        for resource in right.resources
        for verb in right.verbs
    }


def test_a_whole_life_uses_every_right_and_asks_for_no_other(bed: Bed) -> None:
    with faulty_api(bed.control_plane.kubeconfig_for(bed.user, bed.user), bed.folder) as api:
        with bed.operator(kubeconfig=api.kubeconfig, networkPolicies="Enabled").running():
            _live(bed)
            _be_stuck(bed, api)
        # Another release has other settings: what they asked for goes.
        with bed.operator(kubeconfig=api.kubeconfig).running():
            bed.cluster.wait_for(
                "no policy", "NetworkPolicy", bed.namespace, "chat-engine", lambda found: found is None
            )
            bed.cluster.delete(KIND, bed.namespace, "chat")
            bed.cluster.wait_for("gone", KIND, bed.namespace, "chat", lambda found: found is None)
        requests = api.requests()
    assert not [request for request in requests if request.status == 403]
    used, granted = _used(requests), _granted(OPERATOR_RIGHTS) - _NEVER_REQUESTED
    assert (used - granted, granted - used) == (set(), set())


def _live(bed: Bed) -> None:
    """Created, ready, scaled down, rolled, without a router."""
    cluster, namespace = bed.cluster, bed.namespace
    cluster.create(service(namespace, replicas=2))
    wait_until("three pods", lambda: len(cluster.all("Pod", namespace)) == 3)
    with replica() as idle, replica(page=STATE_PAGE | {"drain": {"inFlight": 9}}) as busy:
        for pod in cluster.pods(namespace, "chat", "router"):
            make_ready(cluster, pod)
        for pod, ip in zip(cluster.pods(namespace, "chat"), (idle.ip, busy.ip), strict=True):
            make_ready(cluster, pod, ip)
        cluster.wait_for("Ready", KIND, namespace, "chat", lambda found: holds(found, "Ready"))
        wait_until("their figures are read", lambda: bool(idle.asked and busy.asked))
        cluster.scale(namespace, "chat", 1)
        wait_until("the busy one is left", lambda: _ips(cluster, namespace) == [busy.ip])
    old_pods = {pod["metadata"]["uid"] for pod in cluster.pods(namespace, "chat")}
    old_settings = {
        found["metadata"]["name"] for found in cluster.all("ConfigMap", namespace) if found.get("immutable")
    }
    cluster.patch(KIND, namespace, "chat", {"spec": {"kvCache": {"budget": {"blocks": 600}}}})
    wait_until("a pod of the new generation", lambda: len(cluster.pods(namespace, "chat")) == 2)
    for pod in cluster.pods(namespace, "chat"):
        if pod["metadata"]["uid"] not in old_pods:
            make_ready(cluster, pod)
    for name in old_settings:
        cluster.wait_for("old settings gone", "ConfigMap", namespace, name, lambda found: found is None)
    cluster.patch(KIND, namespace, "chat", {"spec": {"routing": {"mode": "Service"}}})
    cluster.wait_for("no router", "Deployment", namespace, "chat-router", lambda found: found is None)


def _ips(cluster: Cluster, namespace: str) -> list[str]:
    return [pod["status"].get("podIP", "") for pod in cluster.pods(namespace, "chat")]


def _be_stuck(bed: Bed, api: FaultyApi) -> None:
    """A pod that is on a node and whose containers aren't made: only events say why."""
    bed.cluster.create(service(bed.namespace, "stuck"))
    wait_until("a pod", lambda: len(bed.cluster.pods(bed.namespace, "stuck")) == 1)
    (pod,) = bed.cluster.pods(bed.namespace, "stuck")
    bed.cluster.bind(bed.namespace, pod["metadata"]["name"], "nowhere")
    api.wait_for_request(lambda request: request.path.endswith("/events") and is_list(request))
