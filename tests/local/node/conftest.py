"""A process node for each module, and a namespace for each test."""

import uuid
from collections.abc import Iterator

import pytest

from pagefleet_local.control_plane import ControlPlane
from tests.e2e.cluster import Cluster
from tests.local.node.nodes import RunningNode, ready


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Cluster:
    return Cluster(control_plane.kubeconfig)


@pytest.fixture(scope="module")
def node(
    control_plane: ControlPlane, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    name = f"node-{uuid.uuid4().hex[:6]}"
    node = RunningNode(name, tmp_path_factory.mktemp("node") / "state", control_plane)
    node.start()
    try:
        ready(cluster, name)
        yield node
    finally:
        node.end()
        node.stop_pods()
        cluster.delete("Node", None, name)


@pytest.fixture
def namespace(cluster: Cluster, node: RunningNode) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Pods are refused before it is there.
    cluster.wait("default service account", "ServiceAccount", name, lambda found: bool(found))
    yield name
    cluster.delete("Namespace", None, name)
