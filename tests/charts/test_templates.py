"""What the chart renders, over the whole space of its values: objects that Kubernetes knows, and restricted pods."""

import subprocess
import sys
import tomllib
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from pagefleet_contract import names
from pagefleet_contract.rights import (
    BIND_ROUTER_ROLE,
    CLUSTER_SCOPE_RIGHTS,
    OPERATOR_RIGHTS,
    ROUTER_RIGHTS,
    Right,
)
from pagefleet_contract.settings import OperatorSettings
from tests.charts.rendering import CHART, ROOT, Object, helm, of_kind, operator_pod, pods, render
from tests.charts.values import Values, random_values

_VERSION = "1.37"
# The first comes with the Prometheus operator; the second is large, and tests of the contract check it once.
_UNCHECKED = ("PodMonitor", "CustomResourceDefinition")


def assert_known(objects: list[Object]) -> None:
    for each in objects:
        if each["kind"] not in _UNCHECKED:
            kubernetes_validate.validate(each, _VERSION, strict=True)


def assert_restricted(pod: Object) -> None:
    """The restricted profile of Pod Security, and a root that can't be written."""
    spec = pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    sources = {kind for volume in spec.get("volumes", []) for kind in volume} - {"name"}
    assert sources <= {"configMap", "secret", "emptyDir"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


# Without shrinking: each try is a process.
@settings(
    max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(random_values())
def test_whatever_the_values_the_objects_are_known_and_the_pods_restricted(values: Values) -> None:
    objects = render(values)
    assert_known(objects)
    for pod in pods(objects):
        assert_restricted(pod)
    identities = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(identities)) == len(identities)


def test_the_operator_can_read_the_settings_that_it_is_given() -> None:
    given = {"settings": {"scope": "Cluster", "progressDeadlineSeconds": 604_800, "images": {"light": "r.example/l:1"}}}
    (config,) = of_kind(render(given), "ConfigMap")
    read = OperatorSettings.model_validate(yaml.safe_load(config["data"][names.FILE_SETTINGS]))
    assert read == OperatorSettings.model_validate(given["settings"])


def test_the_operator_is_started_with_the_files_that_are_mounted() -> None:
    template = operator_pod(render())
    (container,) = template["spec"]["containers"]
    assert container["command"] == [
        "python",
        "-m",
        "pagefleet_operator",
        "--settings",
        f"{names.MOUNT_SETTINGS}/{names.FILE_SETTINGS}",
        "--root-key-file",
        f"{names.MOUNT_ROOT_KEY}/{names.FILE_ROOT_KEY}",
    ]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {names.MOUNT_SETTINGS, names.MOUNT_ROOT_KEY, names.MOUNT_TMP}
    env = {entry["name"]: entry for entry in container["env"]}
    assert env[names.ENV_LISTEN_ADDRESS]["value"] == names.LISTEN_ALL
    assert env["TMPDIR"]["value"] == env["HOME"]["value"] == names.MOUNT_TMP
    assert {names.ENV_POD_NAME, names.ENV_POD_NAMESPACE, names.ENV_POD_IP} <= set(env)


def test_changed_settings_restart_the_operator() -> None:
    before, after = (operator_pod(render({"settings": {"workers": number}})) for number in (8, 9))
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]


def test_a_budget_exists_only_beside_several_pods() -> None:
    assert of_kind(render(), "PodDisruptionBudget") == []
    (budget,) = of_kind(render({"replicas": 2}), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def _granted(rules: list[Object]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _of(rights: tuple[Right, ...]) -> set[tuple[str, str, str]]:
    return {(right.group, resource, verb) for right in rights for resource in right.resources for verb in right.verbs}


def _role(objects: list[Object], kind: str, name: str) -> list[Object]:
    (role,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    rules: list[Object] = role["rules"]
    return rules


@pytest.mark.parametrize("monitors", ["Disabled", "Enabled"])
def test_the_roles_grant_what_the_contract_says_and_no_more(monitors: str) -> None:
    objects = render({"settings": {"podMonitors": monitors, "leaseName": "ours"}})
    watched = tuple(
        right for right in OPERATOR_RIGHTS if right.place == "watched" and (monitors == "Enabled" or not right.optional)
    )
    assert _granted(_role(objects, "Role", "pagefleet")) == _of(watched)
    own = _role(objects, "Role", "pagefleet-lease")
    assert _granted(own) == _of(tuple(right for right in OPERATOR_RIGHTS if right.place == "own"))
    assert [rule["resourceNames"] for rule in own] == [["ours"]]
    assert _granted(_role(objects, "Role", names.ROUTER_SERVICE_ACCOUNT)) == _of(ROUTER_RIGHTS)


def test_with_cluster_scope_the_operator_may_also_make_the_accounts_of_routers() -> None:
    objects = render({"settings": {"scope": "Cluster"}})
    rules = _role(objects, "ClusterRole", "pagefleet")
    watched = tuple(right for right in OPERATOR_RIGHTS if right.place == "watched" and not right.optional)
    assert _granted(rules) == _of((*watched, *CLUSTER_SCOPE_RIGHTS, BIND_ROUTER_ROLE))
    (bind,) = (rule for rule in rules if "bind" in rule["verbs"])
    assert bind["resourceNames"] == [names.ROUTER_SERVICE_ACCOUNT]
    assert _granted(_role(objects, "ClusterRole", names.ROUTER_SERVICE_ACCOUNT)) == _of(ROUTER_RIGHTS)


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
def test_no_rule_has_a_wildcard_or_secrets(scope: str) -> None:
    for role in (each for each in render({"settings": {"scope": scope}}) if each["kind"] in ("Role", "ClusterRole")):
        granted = _granted(role["rules"])
        assert not [right for right in granted if "*" in right or right[1] in ("secrets", "customresourcedefinitions")]


def test_the_chart_never_holds_a_service() -> None:
    assert of_kind(render(), names.KIND) == []


def test_versions_and_images_are_those_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    images = OperatorSettings().images
    assert {images.light, images.engine} == {f"pagefleet:{version}", f"pagefleet-runtime:{version}"}
    listed = {entry["image"] for entry in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    assert listed == {images.light, images.engine}


def test_the_catalogue_shows_the_quick_start() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    quickstart = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())
    assert yaml.safe_load(annotations["artifacthub.io/crdsExamples"]) == [quickstart]


def test_the_notes_print_the_quick_start_as_it_is() -> None:
    said = helm("install", "pagefleet", CHART, "--dry-run=client", "--namespace", "prod")
    quickstart = (ROOT / "examples/quickstart.yaml").read_text()
    assert f"kubectl apply -n prod -f - <<EOF\n{quickstart}EOF\n" in said


def test_the_completion_test_says_how_to_name_a_service_where_none_is() -> None:
    def command(values: Values) -> list[str]:
        (pod,) = of_kind(render(values), "Pod")
        found: list[str] = pod["spec"]["containers"][0]["command"]
        return found

    nothing = command({})
    done = subprocess.run([sys.executable, *nothing[1:]], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--set test.service=NAME" in done.stdout
    named: Any = command({"test": {"service": "chat", "namespace": "other"}})
    assert named[-1] == f"http://chat.other.svc:{names.HTTP_PORT}"
