"""The process node when the API server refuses, cuts, forgets or says nothing: it makes good what it missed."""

from collections.abc import Iterator

import pytest

from pagefleet_local.control_plane import ControlPlane
from tests.e2e.api_faults import FaultyApi, Request, any_request, faulty_api, is_watch, is_write
from tests.e2e.cluster import Cluster, Object
from tests.local.node.nodes import RunningNode, config_map, eventually, is_ready, node_kubeconfig, pod, ready

pytestmark = pytest.mark.cluster

SLEEP = ("python", "-c", "import time; time.sleep(600)")
NODE = "faulty"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyApi]:
    with faulty_api(node_kubeconfig(control_plane, NODE), tmp_path_factory.mktemp("proxy")) as api:
        yield api


@pytest.fixture(scope="module")
def node(
    api: FaultyApi, control_plane: ControlPlane, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    state = tmp_path_factory.mktemp("node") / "state"
    node = RunningNode(NODE, state, control_plane, kubeconfig=api.kubeconfig)
    node.start()
    try:
        ready(cluster, NODE)
        yield node
    finally:
        api.heal()
        node.end()
        node.stop_pods()
        cluster.delete("Node", None, NODE)


@pytest.fixture(autouse=True)
def healed(api: FaultyApi) -> Iterator[None]:
    yield
    api.heal()


def names_of_ready(found: list[Object]) -> list[str]:
    return sorted(p["metadata"]["name"] for p in found if is_ready(p))


def is_watch_of_pods(request: Request) -> bool:
    return is_watch(request) and request.path == "/api/v1/pods"


@pytest.mark.parametrize("harm", ["expire", "cut", "refuse"])
def test_a_watch_that_ends_is_taken_up_again_and_nothing_is_missed(
    harm: str, api: FaultyApi, cluster: Cluster, namespace: str
) -> None:
    cluster.create(pod("before", namespace, *SLEEP))
    cluster.wait("a pod", "Pod", namespace, lambda found: names_of_ready(found) == ["before"])
    if harm == "expire":
        assert api.expire_watches() > 0
    elif harm == "cut":
        assert api.cut_watches() > 0
    else:
        api.fail(403, when=is_watch_of_pods, times=2)
        assert api.cut_watches(is_watch_of_pods) > 0
    cluster.create(pod("after", namespace, *SLEEP))
    cluster.wait("both", "Pod", namespace, lambda found: names_of_ready(found) == ["after", "before"])
    cluster.delete("Pod", namespace, "before")
    cluster.wait("one gone", "Pod", namespace, lambda found: names_of_ready(found) == ["after"])


def test_a_pod_that_went_while_the_watch_was_away_is_ended(
    api: FaultyApi, cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    cluster.create(pod("goes", namespace, *SLEEP))
    cluster.wait("a pod", "Pod", namespace, lambda found: names_of_ready(found) == ["goes"])
    assert len(list(node.state.glob("pods/*_goes_*"))) == 1
    api.fail(429, when=is_watch_of_pods, times=3)
    api.expire_watches(is_watch_of_pods)
    cluster.delete("Pod", namespace, "goes", gracePeriodSeconds=0)
    eventually("folder gone", lambda: not list(node.state.glob("pods/*_goes_*")), 20)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_refused_writes_are_repeated_until_the_status_stands(
    status: int, api: FaultyApi, cluster: Cluster, namespace: str
) -> None:
    api.fail(status, when=is_write, times=4)
    cluster.create(pod("writes", namespace, *SLEEP))
    cluster.wait("a pod", "Pod", namespace, lambda found: names_of_ready(found) == ["writes"])
    api.fail(status, when=is_write, times=3)
    cluster.delete("Pod", namespace, "writes")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)


def test_credentials_are_read_again_when_they_are_refused(api: FaultyApi, cluster: Cluster, namespace: str) -> None:
    mark = api.mark()
    api.fail(401, when=is_watch_of_pods)
    api.cut_watches(is_watch_of_pods)
    api.wait_for_request(lambda request: request.status == 401, after=mark)
    cluster.create(pod("again", namespace, *SLEEP))
    cluster.wait("a pod", "Pod", namespace, lambda found: names_of_ready(found) == ["again"])


def test_a_config_map_that_changed_during_the_gap_reaches_the_pod(
    api: FaultyApi, cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    cluster.apply(config_map("live", namespace, a="1"))
    volumes = [{"name": "live", "configMap": {"name": "live"}}]
    mounts = [{"name": "live", "mountPath": "/pagefleet/live"}]
    cluster.create(pod("live", namespace, *SLEEP, volumeMounts=mounts, spec={"volumes": volumes}))
    cluster.wait("a pod", "Pod", namespace, lambda found: names_of_ready(found) == ["live"])
    api.fail(500, when=is_watch, times=2)
    api.cut_watches()
    cluster.apply(config_map("live", namespace, a="2"))
    file = next(node.state.glob("pods/*_live_*/volumes/live")) / "a"
    eventually("the new value", lambda: file.read_text() == "2", 20)


def test_slow_answers_only_slow_it_down(api: FaultyApi, cluster: Cluster, namespace: str) -> None:
    api.delay(0.3, when=any_request)
    cluster.create(pod("slow", namespace, *SLEEP))
    cluster.wait("a pod", "Pod", namespace, lambda found: names_of_ready(found) == ["slow"])
    cluster.delete("Pod", namespace, "slow")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)


@pytest.mark.long
def test_a_watch_that_says_nothing_is_given_up(api: FaultyApi, cluster: Cluster, namespace: str) -> None:
    api.silence_watches()
    for name in ("unheard", "unheard-too"):
        cluster.create(pod(name, namespace, *SLEEP))
        cluster.wait("its place", "Pod", namespace, lambda found: all(p["spec"].get("nodeName") for p in found))
    api.speak()
    assert names_of_ready(cluster.all("Pod", namespace)) == []
    cluster.wait("both", "Pod", namespace, lambda found: names_of_ready(found) == ["unheard", "unheard-too"], 150)
