"""Where the end-to-end suite runs: the cluster of PAGEFLEET_E2E_KUBECONFIG, else a fleet on this machine.

A given cluster must have nodes that hold the images of PAGEFLEET_E2E_LIGHT_IMAGE and PAGEFLEET_E2E_ENGINE_IMAGE (the
chart's defaults if absent), and this machine must reach its ClusterIPs. Either way Helm installs the chart, and the
operator has the rights that the chart gives it and no more.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet_local.chart import chart_folder
from pagefleet_local.commands import OPERATOR_NAMESPACE, Commands
from pagefleet_local.fleet import Fleet as LocalFleet
from pagefleet_local.fleet_folder import FleetFolder
from pagefleet_local.folders import cache_folder
from pagefleet_local.tools import find_tools
from tests.e2e.cluster import Cluster
from tests.e2e.fleet import Fleet
from tests.e2e.given_cluster import IMAGES, KUBECONFIG

_INSTALL_SECONDS = 180
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class _Said:
    """Progress of long steps, for whoever reads the log of a failed run."""

    def doing(self, text: str) -> None:
        print(text, file=sys.stderr)

    done = doing


def fleet_values() -> dict[str, Any]:
    """What the suite sets on the chart: figures are read often, so that a wait for them is short."""
    images = {name: os.environ[variable] for name, variable in IMAGES.items() if os.environ.get(variable)}
    return {"settings": {"scope": "Cluster", "figuresSeconds": 1, "statusSeconds": 5, "images": images}}


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """pagefleet, installed, looking after every namespace."""
    folder = tmp_path_factory.mktemp("fleet")
    cache = cache_folder(os.environ)
    if given := os.environ.get(KUBECONFIG):
        commands = Commands(find_tools(cache, _Said().doing), Path(given), folder / "tools")
        commands.install_chart(chart_folder(), fleet_values(), _INSTALL_SECONDS)
        yield Fleet(Cluster(Path(given)), OPERATOR_NAMESPACE, commands)
        return
    local = LocalFleet(FleetFolder(folder / "state"), cache, os.environ, _Said())
    try:
        local.up([])
        commands = local.commands()
        commands.install_chart(chart_folder(), fleet_values(), _INSTALL_SECONDS)
        yield Fleet(Cluster(local.folder.kubeconfig), OPERATOR_NAMESPACE, commands)
    finally:
        local.down()


@pytest.fixture
def namespaces(fleet: Fleet) -> Iterator[Callable[[], str]]:
    """A function that makes a namespace of the test's own, that admits restricted pods only."""
    made: list[str] = []

    def make() -> str:
        name = _made_namespace(fleet.cluster)
        made.append(name)
        return name

    yield make
    for name in made:
        fleet.cluster.delete("Namespace", None, name)


@pytest.fixture
def namespace(namespaces: Callable[[], str]) -> str:
    """A namespace of the test's own, that admits restricted pods only."""
    return namespaces()


def _made_namespace(cluster: Cluster) -> str:
    made = cluster.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "e2e-", "labels": _RESTRICTED}}
    )
    name = str(made["metadata"]["name"])
    cluster.wait_for("a service account", "ServiceAccount", name, "default", lambda found: found is not None)
    return name
