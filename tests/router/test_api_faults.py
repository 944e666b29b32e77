"""The router before a real API server, through a proxy that does harm: it follows the pods whatever happens to the API,
and goes on with those it knew."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from kubernetes import client, config
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_contract.names import ANNOTATION_DRAIN, COMPONENT_ENGINE, service_selector
from pagefleet_local.control_plane import API_SERVER, ControlPlane
from tests.e2e.api_faults import FaultyApi, faulty_api, is_list, is_watch
from tests.router.router_program import RouterProgram, config_file, router_program

pytestmark = pytest.mark.cluster

# A pod that is deleted stays until this is taken away.
FINALIZER = "pagefleet.dev/router-tests"


@dataclass
class Site:
    """A namespace with pods that a test makes ready, and a router that watches them."""

    api: FaultyApi
    core: Any  # its methods want models where manifests read better
    namespace: str
    node: str
    token_file: Path
    router: RouterProgram

    def create_pod(self, name: str, address: str | None = "127.0.0.1", **labels: str) -> None:
        selector = service_selector("chat", COMPONENT_ENGINE) | labels
        pod = client.V1Pod(
            metadata=client.V1ObjectMeta(name=name, labels=selector, finalizers=[FINALIZER]),
            spec=client.V1PodSpec(node_name=self.node, containers=[client.V1Container(name="engine", image="none")]),
        )
        self.core.create_namespaced_pod(self.namespace, pod)
        if address is not None:
            self.set_ready(name, True, address)

    def set_ready(self, name: str, ready: bool, address: str = "127.0.0.1") -> None:
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-11-29T12:00:00Z"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
        self.core.patch_namespaced_pod_status(name, self.namespace, {"status": status})

    def patch(self, name: str, metadata: dict[str, Any]) -> None:
        self.core.patch_namespaced_pod(name, self.namespace, {"metadata": metadata})

    def delete(self, name: str) -> None:
        self.core.delete_namespaced_pod(name, self.namespace)

    def replicas(self) -> dict[str, float]:
        """Return what the router's metrics say: pods by state that aren't 0."""
        families = text_string_to_metric_families(httpx2.get(self.router.url + "/metrics").text)
        samples = next(family.samples for family in families if family.name == "pagefleet_router_replicas")
        return {sample.labels["state"]: sample.value for sample in samples if sample.value}

    def wait_for(self, seconds: float = 60, **expected: float) -> None:
        self.router.wait_until(lambda: self.replicas() == expected, seconds, self._found)

    def _found(self) -> str:
        """Return what the router and the API server know of the pods now."""
        pods = self.core.list_namespaced_pod(self.namespace).items
        return f"{self.replicas()}, of {[(pod.metadata, pod.status.conditions) for pod in pods]}"


def _core(kubeconfig: Path) -> Any:
    configuration = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    return client.CoreV1Api(client.ApiClient(configuration))


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[str]:
    """A node of the test's own: one that was a minute without a kubelet has its new pods marked unready, as soon as the
    controllers see them. After a restart of the API server that can be before the router does."""
    core = _core(control_plane.kubeconfig)
    made = core.create_node(client.V1Node(metadata=client.V1ObjectMeta(generate_name="router-tests-")))
    yield str(made.metadata.name)
    core.delete_node(made.metadata.name)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    core = _core(control_plane.kubeconfig)
    made = core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(generate_name="router-")))
    name = str(made.metadata.name)
    yield name
    for pod in core.list_namespaced_pod(name).items:
        core.patch_namespaced_pod(pod.metadata.name, name, {"metadata": {"finalizers": None}})
        core.delete_namespaced_pod(pod.metadata.name, name, grace_period_seconds=0)
    core.delete_namespace(name)


def _token(core: Any, namespace: str) -> str:
    """Return a token that may do to pods what the chart's role lets the router do, and nothing else."""
    rbac: Any = client.RbacAuthorizationV1Api(core.api_client)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "router"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    rbac.create_namespaced_role(namespace, {"metadata": {"name": "router"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"}
    subject = {"kind": "ServiceAccount", "name": "router", "namespace": namespace}
    rbac.create_namespaced_role_binding(
        namespace, {"metadata": {"name": "router"}, "roleRef": reference, "subjects": [subject]}
    )
    made = core.create_namespaced_service_account_token("router", namespace, {"spec": {"expirationSeconds": 3600}})
    return str(made.status.token)


@pytest.fixture
def site(control_plane: ControlPlane, node: str, namespace: str, tmp_path: Path) -> Iterator[Site]:
    core = _core(control_plane.kubeconfig)
    token_file = tmp_path / "token"
    token_file.write_text(_token(core, namespace))
    with faulty_api(control_plane.kubeconfig, tmp_path) as api:
        command = ("pagefleet_router", "--config", str(config_file(tmp_path, namespace=namespace)), "--port", "0")
        environment = {"KUBECONFIG": str(api.kubeconfig_with(token_file=token_file))}
        with router_program(tmp_path, *command, environment=environment) as router:
            router.wait_ready()
            api.wait_for_request(is_watch)
            yield Site(api, core, namespace, node, token_file, router)


def test_pods_are_followed_through_their_lives(site: Site) -> None:
    site.create_pod("a", None)
    site.wait_for(unready=1)
    site.set_ready("a", True)
    site.create_pod("b", "fd00::7")
    site.create_pod("another-component", **{"pagefleet.dev/component": "router"})
    site.create_pod("another-service", **{"pagefleet.dev/service": "other"})
    site.wait_for(ready=2)
    site.set_ready("a", False)
    site.wait_for(ready=1, unready=1)
    site.set_ready("a", True)
    site.patch("a", {"annotations": {ANNOTATION_DRAIN: "moving"}})
    site.wait_for(ready=1, draining=1)
    site.patch("a", {"annotations": {ANNOTATION_DRAIN: None}})
    site.wait_for(ready=2)
    site.delete("a")
    site.wait_for(ready=1, draining=1)
    site.patch("a", {"finalizers": None})
    site.core.delete_namespaced_pod("a", site.namespace, grace_period_seconds=0)
    site.wait_for(ready=1)
    assert len(site.api.requests(is_list)) == 1


def test_a_cut_watch_is_opened_again_and_loses_nothing(site: Site) -> None:
    site.create_pod("a")
    site.wait_for(ready=1)
    mark = site.api.mark()
    assert site.api.cut_watches() == 1
    site.create_pod("b")
    site.wait_for(ready=2)
    assert site.api.requests(is_watch, after=mark)


def test_an_expired_watch_and_a_refused_one_are_followed_by_a_new_list(site: Site) -> None:
    site.create_pod("a")
    site.wait_for(ready=1)
    mark = site.api.mark()
    assert site.api.expire_watches() == 1
    site.create_pod("b")
    site.wait_for(ready=2)
    site.api.wait_for_request(is_list, after=mark)
    mark = site.api.mark()
    site.api.fail(410, when=is_watch)
    site.api.cut_watches()
    site.create_pod("c")
    site.wait_for(ready=3)
    site.api.wait_for_request(is_list, after=mark)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_refusals_of_the_api_leave_the_replicas_known_and_are_waited_out(site: Site, status: int) -> None:
    site.create_pod("a")
    site.wait_for(ready=1)
    mark = site.api.mark()
    site.api.fail(status, times=3)
    site.api.cut_watches()
    site.api.wait_for_request(lambda request: request.status == status, after=mark, times=3)
    assert site.replicas() == {"ready": 1}
    assert site.router.status("/health/ready") == 200
    site.create_pod("b")
    site.wait_for(ready=2)


def test_what_the_api_asks_for_is_kept(site: Site) -> None:
    mark = site.api.mark()
    site.api.fail(429, retry_after=2)
    site.api.cut_watches()
    site.api.wait_for_request(lambda request: request.status == 429, after=mark)
    with pytest.raises(AssertionError, match="didn't come within"):
        site.api.wait_for_request(lambda request: request.status == 200, after=mark, seconds=1)
    site.create_pod("a")
    site.wait_for(ready=1)


def test_a_token_that_has_ended_is_read_again_from_its_file(site: Site) -> None:
    """The kubelet writes a new token in time; a router that kept the old one is answered 401 by the real server."""
    good = site.token_file.read_text()
    site.create_pod("a")
    site.wait_for(ready=1)
    mark = site.api.mark()
    site.token_file.write_text("ended")
    # The token in use is still good; a refusal makes the router read the file, and what is there now isn't.
    site.api.fail(401)
    site.api.cut_watches()
    site.api.wait_for_request(lambda request: request.status == 401, after=mark, times=3)
    assert site.replicas() == {"ready": 1}
    site.token_file.write_text(good)
    site.create_pod("b")
    site.wait_for(ready=2)


def test_a_watch_that_goes_silent_is_given_up_in_time(site: Site) -> None:
    site.create_pod("a")
    site.wait_for(ready=1)
    site.api.silence_watches()
    site.create_pod("b")
    mark = site.api.mark()
    site.api.wait_for_request(lambda request: request.status == 200, after=mark, seconds=50)
    site.api.speak()
    site.wait_for(ready=2, seconds=50)


def test_a_slow_api_delays_what_is_seen_and_nothing_else(site: Site) -> None:
    site.create_pod("a")
    site.wait_for(ready=1)
    site.api.delay(1.0)
    site.api.cut_watches()
    site.create_pod("b")
    site.wait_for(ready=2)
    site.api.heal()


def test_a_restart_of_the_api_server_is_survived(site: Site, control_plane: ControlPlane) -> None:
    site.create_pod("a")
    site.wait_for(ready=1)
    control_plane.processes.stop(API_SERVER, 15)
    try:
        site.router.wait_until(lambda: "go on being used" in site.router.log)
        assert site.replicas() == {"ready": 1}
        assert site.router.status("/health/ready") == 200
        age = httpx2.get(site.router.url + "/metrics").text.split("\npagefleet_router_watch_age_seconds ")[1]
        assert float(age.split("\n")[0]) > 0
    finally:
        control_plane.start()
    site.create_pod("b")
    site.wait_for(ready=2)
    assert "the Kubernetes API answers again" in site.router.log


def test_an_idle_router_asks_for_little(site: Site) -> None:
    """A list at first, then one watch after the other: a fleet of a thousand services has a thousand routers."""
    assert len(site.api.requests()) == 2
    assert json.dumps([request.query.get("labelSelector") for request in site.api.requests()]).count("component") == 2
