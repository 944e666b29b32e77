"""Releases that share a cluster (B20), and what goes first: the operator, the namespace or the definition (C05)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagefleet_contract.names import CONDITION_READY, CRD_NAME, KIND, LABEL_SERVICE
from pagefleet_local.chart import chart_folder
from pagefleet_local.commands import RELEASE
from tests.e2e.cluster import Object, holds
from tests.e2e.conftest import fleet_values
from tests.e2e.fleet import Fleet
from tests.e2e.services import service
from tests.e2e.traffic import completion

pytestmark = pytest.mark.cluster

Namespaces = Callable[[], str]


def _ready(found: Object | None) -> bool:
    return holds(found, CONDITION_READY)


@contextmanager
def _release(fleet: Fleet, folder: Path, namespace: str, watched: list[str], **values: Any) -> Iterator[str]:
    """A further release in its own namespace that looks after the given ones with Roles alone."""
    settings = fleet_values()["settings"] | {"scope": "Namespaced", "watchNamespaces": watched}
    file = folder / f"{namespace}.json"
    file.write_text(json.dumps({"settings": settings, "crds": {"install": False}, **values}))
    name = f"own-{namespace}"
    fleet.commands.helm(
        *("install", name, str(chart_folder()), f"--namespace={namespace}", f"--values={file}"),
        *("--wait", "--timeout=120s"),
    )
    try:
        yield name
    finally:
        fleet.commands.helm("uninstall", name, f"--namespace={namespace}", "--ignore-not-found", "--wait")


def test_b20_each_release_looks_after_its_own_namespaces_with_roles_alone(
    fleet: Fleet, namespaces: Namespaces, tmp_path: Path
) -> None:
    first, second, nobodys = namespaces(), namespaces(), namespaces()
    with fleet.no_operator(), _release(fleet, tmp_path, first, [first]), _release(fleet, tmp_path, second, [second]):
        for namespace in (first, second, nobodys):
            fleet.cluster.apply(service(namespace))
        for namespace in (first, second):
            fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
            assert completion(fleet.url(namespace, "chat"), "chat")
        untouched = fleet.cluster.get(KIND, nobodys, "chat")
        assert untouched is not None
        assert "status" not in untouched
        assert not fleet.cluster.pods(nobodys, "chat")


def test_b20_one_release_looks_after_two_namespaces(fleet: Fleet, namespaces: Namespaces, tmp_path: Path) -> None:
    first, second = namespaces(), namespaces()
    with fleet.no_operator(), _release(fleet, tmp_path, first, [first, second]):
        for namespace in (first, second):
            fleet.cluster.apply(service(namespace))
            fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)


def test_c05_a_namespace_goes_with_its_services(fleet: Fleet, namespaces: Namespaces) -> None:
    namespace = namespaces()
    for name in ("one", "two", "three"):
        fleet.cluster.apply(service(namespace, name))
    fleet.cluster.wait_for("Ready", KIND, namespace, "three", _ready)
    fleet.cluster.delete("Namespace", None, namespace)
    fleet.cluster.wait_for("no namespace", "Namespace", None, namespace, lambda found: found is None, 60)


def test_c05_a_namespace_goes_with_the_operator_in_it(fleet: Fleet, namespaces: Namespaces, tmp_path: Path) -> None:
    namespace = namespaces()
    with fleet.no_operator(), _release(fleet, tmp_path, namespace, [namespace]):
        fleet.cluster.apply(service(namespace))
        fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
        fleet.cluster.delete("Namespace", None, namespace)
        fleet.cluster.wait_for("no namespace", "Namespace", None, namespace, lambda found: found is None, 60)


def test_c05_services_outlive_their_release_and_can_be_deleted_without_it(
    fleet: Fleet, namespaces: Namespaces, tmp_path: Path
) -> None:
    namespace = namespaces()
    with fleet.no_operator():
        with _release(fleet, tmp_path, namespace, [namespace]):
            fleet.cluster.apply(service(namespace))
            fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
        assert fleet.cluster.get("CustomResourceDefinition", None, CRD_NAME, "apiextensions.k8s.io/v1") is not None
        assert completion(fleet.url(namespace, "chat"), "chat")
        fleet.cluster.delete(KIND, namespace, "chat")
        for kind in ("Deployment", "Pod", "Service", "ConfigMap"):
            fleet.cluster.wait(f"no {kind}", kind, namespace, lambda left: not left, 60, f"{LABEL_SERVICE}=chat")


def test_c05_the_definition_goes_with_every_service_and_comes_back(fleet: Fleet, namespaces: Namespaces) -> None:
    namespace = namespaces()
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    version = "apiextensions.k8s.io/v1"
    fleet.cluster.delete("CustomResourceDefinition", None, CRD_NAME, version)
    fleet.cluster.wait_for(
        "no definition", "CustomResourceDefinition", None, CRD_NAME, lambda found: found is None, 60, version
    )
    fleet.cluster.wait("no Pod", "Pod", namespace, lambda left: not left, 60, f"{LABEL_SERVICE}=chat")
    fleet.commands.install_chart(chart_folder(), fleet_values(), 180)
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready again", KIND, namespace, "chat", _ready, 120)


def test_b17_an_upgrade_keeps_services_and_their_pods(fleet: Fleet, namespaces: Namespaces) -> None:
    namespace = namespaces()
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    before = {pod["metadata"]["uid"] for pod in fleet.cluster.pods(namespace, "chat")}
    release_namespace = f"--namespace={fleet.operator_namespace}"
    fleet.commands.helm(
        *("upgrade", RELEASE, str(chart_folder()), release_namespace, "--reuse-values"),
        *("--set", "resources=null", "--set", "settings.workers=4", "--wait", "--timeout=120s"),
    )
    fleet.commands.helm("rollback", RELEASE, release_namespace, "--wait", "--timeout=120s")
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    assert {pod["metadata"]["uid"] for pod in fleet.cluster.pods(namespace, "chat")} == before
