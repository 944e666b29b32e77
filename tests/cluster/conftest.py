"""Tests of the node itself run on it: `python -m tests.cluster.bed --image light -- python -m pytest tests/cluster`.

Elsewhere they aren't collected: no test is skipped that could run.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import given_cluster
from tests.e2e.cluster import Cluster

_INSIDE = given_cluster.VOLUMES in os.environ
collect_ignore = ["test_bed.py"] if _INSIDE else ["test_node.py"]

_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster(Path(os.environ[given_cluster.KUBECONFIG]))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own, that admits restricted pods only."""
    made = cluster.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "bed-", "labels": _RESTRICTED}}
    )
    name = str(made["metadata"]["name"])
    cluster.wait_for("a service account", "ServiceAccount", name, "default", lambda found: found is not None)
    yield name
    cluster.delete("Namespace", None, name)
