"""The chart on a real API server: under the restricted profile, through upgrade, rollback, uninstall and install."""

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet_contract import names
from pagefleet_local.control_plane import ControlPlane
from tests.charts.rendering import CHART, Object, helm, pods, render, tools

pytestmark = pytest.mark.cluster

_RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


class Cluster:
    """kubectl and helm against the control plane, and two namespaces under the restricted profile."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        # Deleted ones are on their way for a while, so each test has others.
        self.a, self.b = (f"chart-{uuid.uuid4().hex[:6]}" for _ in range(2))
        for namespace in (self.a, self.b):
            self.kubectl("create", "namespace", namespace)
            self.kubectl("label", "namespace", namespace, _RESTRICTED)

    def clear(self) -> None:
        for namespace in (self.a, self.b):
            self.helm("uninstall", "pagefleet", "--namespace", namespace, "--ignore-not-found")
        self.kubectl("delete", "crd", names.CRD_NAME, "--ignore-not-found")
        self.kubectl("delete", "namespace", self.a, self.b, "--wait=false")

    def kubectl(self, *arguments: str, given: Object | None = None, fails: bool = False) -> str:
        done = subprocess.run(
            [tools()["kubectl"], "--kubeconfig", str(self._kubeconfig), *arguments],
            input=None if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def helm(self, *arguments: str | Path, fails: bool = False) -> str:
        return helm(*arguments, kubeconfig=self._kubeconfig, fails=fails)

    def read(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def root_key(self, namespace: str) -> str:
        return str(self.read("secret", "pagefleet-root-key", "-n", namespace)["data"][names.FILE_ROOT_KEY])


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    found = Cluster(control_plane.kubeconfig)
    yield found
    found.clear()


def service(**spec: Any) -> Object:
    model = {"uri": "simulated://llama-3.1-8b"}
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "chat"}}
    return head | {"spec": {"model": model, **spec}}


def older_chart(folder: Path) -> Path:
    """Return the chart as an older release could have been: its definition lacks a field, its values a section."""
    chart = folder / "pagefleet"
    shutil.copytree(CHART, chart)
    (chart / "Chart.yaml").write_text((chart / "Chart.yaml").read_text().replace("version: 0.1.0", "version: 0.0.9", 1))
    values = yaml.safe_load((chart / "values.yaml").read_text())
    del values["metrics"], values["settings"]["networkPolicies"]
    (chart / "values.yaml").write_text(yaml.safe_dump(values))
    crd = chart / "templates/crd.yaml"
    head, spec = crd.read_text().split("\nspec:\n")
    definition = yaml.safe_load("spec:\n" + spec.replace("{{- end }}", ""))
    del definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["serving"]
    crd.write_text(f"{head}\n{yaml.safe_dump(definition)}{{{{- end }}}}\n")
    return chart


def test_every_pod_of_the_chart_is_admitted_under_the_restricted_profile(cluster: Cluster) -> None:
    everything = {
        "test": {"service": "chat", "apiKeySecret": "keys"},
        "tolerations": [{"operator": "Exists"}],
        "settings": {"images": {"pullSecrets": ["registry"]}},
    }
    found = list(pods(render(everything)))
    assert len(found) == 2
    for pod in found:
        pod["spec"]["serviceAccountName"] = "default"
        said = cluster.kubectl("apply", "--dry-run=server", "--namespace", cluster.a, "-f", "-", given=pod)
        assert "created (server dry run)" in said


def test_b17_upgrade_rollback_uninstall_and_install_keep_definition_services_and_key(
    cluster: Cluster, tmp_path: Path
) -> None:
    place = ("--namespace", cluster.a)
    cluster.helm("install", "pagefleet", older_chart(tmp_path), *place)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{names.CRD_NAME}")
    cluster.kubectl("apply", *place, "-f", "-", given=service())
    key, uid = cluster.root_key(cluster.a), cluster.read("pfs", "chat", *place)["metadata"]["uid"]
    newer = service(serving={"maxBodyBytes": 4096})
    assert "unknown field" in cluster.kubectl("apply", *place, "--validate=strict", "-f", "-", given=newer, fails=True)

    cluster.helm("upgrade", "pagefleet", CHART, *place)
    cluster.kubectl("apply", *place, "--validate=strict", "-f", "-", given=newer)
    for nothing in ("metrics", "resources", "tolerations", "settings", "crds"):
        cluster.helm("upgrade", "pagefleet", CHART, *place, "--reuse-values", "--set", f"{nothing}=null")
    cluster.helm("rollback", "pagefleet", "2", *place)
    cluster.helm("uninstall", "pagefleet", *place)
    assert cluster.read("pfs", "chat", *place)["spec"]["serving"]["maxBodyBytes"] == 4096
    assert cluster.kubectl("get", "lease,deployment", *place).startswith("No resources found")

    cluster.helm("install", "pagefleet", CHART, *place)
    assert cluster.root_key(cluster.a) == key
    assert cluster.read("pfs", "chat", *place)["metadata"]["uid"] == uid


def test_an_upgrade_from_values_that_lack_a_section_renders(cluster: Cluster, tmp_path: Path) -> None:
    place = ("--namespace", cluster.a)
    cluster.helm("install", "pagefleet", older_chart(tmp_path), *place)
    cluster.helm("upgrade", "pagefleet", CHART, *place, "--reuse-values")
    assert cluster.read("service", "pagefleet-metrics", *place)["spec"]["ports"][0]["port"] == names.OPERATOR_PORT


def test_b20_two_releases_stand_side_by_side_and_one_definition_belongs_to_the_first(cluster: Cluster) -> None:
    cluster.helm("install", "pagefleet", CHART, "--namespace", cluster.a)
    said = cluster.helm("install", "pagefleet", CHART, "--namespace", cluster.b, fails=True)
    assert names.CRD_NAME in said
    said = cluster.helm("install", "pagefleet", CHART, "--namespace", cluster.b, "--set", "crds.install=false")
    assert names.CRD_NAME in said
    # Removing the second takes nothing from the first.
    cluster.helm("uninstall", "pagefleet", "--namespace", cluster.b)
    cluster.read("crd", names.CRD_NAME)
    cluster.read("lease", "pagefleet-operator", "-n", cluster.a)


def test_two_releases_for_one_namespace_are_refused(cluster: Cluster) -> None:
    cluster.helm("install", "pagefleet", CHART, "--namespace", cluster.a)
    second = (
        "--namespace",
        cluster.b,
        "--set",
        "crds.install=false",
        "--set",
        f"settings.watchNamespaces={{{cluster.a}}}",
    )
    said = cluster.helm("install", "pagefleet", CHART, *second, fails=True)
    assert f'in namespace "{cluster.a}" exists' in said


def test_without_keep_the_definition_and_the_key_go_with_the_release(cluster: Cluster) -> None:
    cluster.helm("install", "pagefleet", CHART, "--namespace", cluster.a, "--set", "crds.keep=false")
    cluster.helm("uninstall", "pagefleet", "--namespace", cluster.a, "--wait")
    assert "NotFound" in cluster.kubectl("get", "crd", names.CRD_NAME, fails=True)
    assert "NotFound" in cluster.kubectl("get", "secret", "pagefleet-root-key", "-n", cluster.a, fails=True)
