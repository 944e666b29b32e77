"""A namespace with a Lease and roles for each test, on the session's control plane."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from pagefleet_contract.names import CRD_NAME
from tests.e2e.cluster import Cluster
from tests.operator.cluster.bed import CRD, Bed, Operator

if TYPE_CHECKING:
    from pagefleet_local.control_plane import ControlPlane

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(control_plane: "ControlPlane") -> Cluster:
    """The control plane with our CRD served."""
    cluster = Cluster(control_plane.kubeconfig)
    cluster.apply(yaml.safe_load(CRD.read_text()))
    cluster.wait_for(
        "an established CRD",
        "CustomResourceDefinition",
        None,
        CRD_NAME,
        lambda found: any(
            c["type"] == "Established" and c["status"] == "True"
            for c in ((found or {}).get("status") or {}).get("conditions") or []
        ),
        version="apiextensions.k8s.io/v1",
    )
    return cluster


@pytest.fixture
def bed(cluster: Cluster, control_plane: "ControlPlane", tmp_path: Path) -> Bed:
    made = Bed(cluster, control_plane, f"acting-{next(_NUMBERS)}", tmp_path)
    made.install()
    return made


@pytest.fixture
def operator(bed: Bed) -> Iterator[Operator]:
    """One operator that is ready."""
    with bed.operator().running() as started:
        yield started
