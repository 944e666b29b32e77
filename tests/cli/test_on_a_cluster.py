"""The command on a real API server: what is applied is shown, scaled, waited for and deleted."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from pagefleet_contract.crd import custom_resource_definition
from pagefleet_contract.names import API_VERSION, CRD_NAME, GROUP, KIND, PLURAL, VERSION
from pagefleet_local.control_plane import ControlPlane
from pagefleet_local.waiting import wait_for
from tests.cli.test_cli import COMMAND, run

pytestmark = pytest.mark.cluster
NAMESPACE = "cli"


class Services:
    """Services in the tests' namespace, written as users and operator write them."""

    def __init__(self, plane: ControlPlane) -> None:
        api = config.new_client_from_config(str(plane.kubeconfig))
        self._objects: Any = client.CustomObjectsApi(api)
        self.kubeconfig = str(plane.kubeconfig)

    def create(self, name: str) -> None:
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
        body |= {"spec": {"model": {"uri": "simulated://smollm2-135m"}}}
        self._objects.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, body)

    def say(self, name: str, kind: str, status: str, reason: str, message: str) -> None:
        found = self.get(name)
        condition = {"type": kind, "status": status, "reason": reason, "message": message}
        condition |= {
            "observedGeneration": found["metadata"]["generation"],
            "lastTransitionTime": "2026-11-29T12:00:00Z",
        }
        body = {"status": {"observedGeneration": found["metadata"]["generation"], "conditions": [condition]}}
        body["status"] |= {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "ready": "1/1"}
        self._objects.patch_namespaced_custom_object_status(GROUP, VERSION, NAMESPACE, PLURAL, name, body)

    def hold(self, name: str, *finalizers: str) -> None:
        body = {"metadata": {"finalizers": [*finalizers]}}
        self._objects.patch_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, name, body)

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._objects.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, name)
        return found

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(*arguments, "--namespace", NAMESPACE, "--kubeconfig", self.kubeconfig)

    @contextmanager
    def started(self, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
        """Start the command with its output to be read, and end it with the block, whatever it does."""
        command = [COMMAND, *arguments, "--namespace", NAMESPACE, "--kubeconfig", self.kubeconfig]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def services(control_plane: ControlPlane) -> Iterator[Services]:
    api = config.new_client_from_config(str(control_plane.kubeconfig))
    definitions: Any = client.ApiextensionsV1Api(api)
    # Another test of the session may have brought it: it is the same.
    if CRD_NAME not in {each.metadata.name for each in definitions.list_custom_resource_definition().items}:
        definitions.create_custom_resource_definition(yaml.safe_load(json.dumps(custom_resource_definition())))
    objects: Any = client.CustomObjectsApi(api)

    def is_served() -> bool:
        try:
            objects.list_cluster_custom_object(GROUP, VERSION, PLURAL)
        except client.ApiException:
            return False
        return True

    assert wait_for(is_served, 30)
    core = client.CoreV1Api(api)
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    yield Services(control_plane)
    core.delete_namespace(NAMESPACE)


def test_services_are_listed_and_shown_in_every_form(services: Services) -> None:
    services.create("shown")
    services.say("shown", "Ready", "False", "Loading", "weights: 3 of 9")
    table = services.run("get", "shown").stdout.splitlines()
    assert table[0].split() == ["NAME", "MODEL", "READY", "UP-TO-DATE", "STATUS", "KV%", "AGE"]
    assert table[1].split()[:5] == ["shown", "simulated://smollm2-135m", "1/1", "1", "Loading"]
    assert len(services.run("get", "shown", "shown").stdout.splitlines()) == 2
    assert "URL" in services.run("get", "-o", "wide").stdout
    assert services.run("get", "-o", "name").stdout.split() == ["shown"]
    for found in (
        json.loads(services.run("get", "shown", "-o", "json").stdout),
        yaml.safe_load(services.run("get", "shown", "-o", "yaml").stdout),
    ):
        assert found["kind"] == KIND and found["spec"]["replicas"] == 1
    everywhere = run("get", "-A", "--kubeconfig", services.kubeconfig).stdout
    assert everywhere.startswith("NAMESPACE") and NAMESPACE in everywhere
    assert services.run("delete", "shown").stdout == "shown deleted\n"
    nothing = services.run("get")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", f"no services in {NAMESPACE}\n")


def test_a_scaled_number_is_checked_by_the_cluster_and_stays(services: Services) -> None:
    services.create("scaled")
    assert (
        "scaled goes to 1 replica; `pagefleet wait scaled` waits for it\n"
        == services.run("scale", "scaled", "1").stdout
    )
    assert services.run("scale", "scaled", "3").returncode == 0
    assert services.get("scaled")["spec"]["replicas"] == 3
    assert services.run("scale", "scaled", "--replicas", "2").returncode == 0
    assert services.get("scaled")["spec"]["replicas"] == 2
    refused = services.run("scale", "scaled", "5000")
    assert refused.returncode == 1 and "spec.replicas" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert services.get("scaled")["spec"]["replicas"] == 2
    services.run("delete", "scaled")


def test_watching_goes_on_with_what_changes_until_it_is_broken_off(services: Services) -> None:
    services.create("watched")
    with services.started("get", "watched", "-w") as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[:2] == ["NAME", "MODEL"]
        assert watching.stdout.readline().split()[0] == "watched"
        services.say("watched", "Ready", "True", "Serving", "")
        assert watching.stdout.readline().split()[2:5] == ["1/1", "1", "Serving"]
        services.run("delete", "watched")
        assert watching.stdout.readline() == f"{NAMESPACE}/watched is gone\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == -signal.SIGINT


def test_waiting_ends_when_the_service_is_ready(services: Services) -> None:
    services.create("waited")
    services.say("waited", "Ready", "False", "Loading", "weights: 3 of 9")
    with services.started("wait", "waited", "--timeout", "60") as waiting:
        assert waiting.stdout is not None and waiting.stderr is not None
        assert waiting.stderr.readline() == "waited: Loading: weights: 3 of 9 …\n"
        services.say("waited", "Ready", "True", "Serving", "")
        assert waiting.stdout.read() == "waited is ready\n"
        assert waiting.wait(10) == 0
    services.run("delete", "waited")


def test_waiting_gives_up_at_once_where_only_another_spec_helps(services: Services) -> None:
    services.create("huge")
    services.say("huge", "ModelFits", "False", "TooLarge", "needs 80 GB, has 24 GB")
    done = services.run("wait", "huge", "--timeout", "60")
    assert done.returncode == 1
    assert done.stderr == "pagefleet: huge can't become ready: TooLarge: needs 80 GB, has 24 GB\n"
    services.run("delete", "huge")


def test_what_is_not_there_is_named(services: Services) -> None:
    for command in (
        ["get", "nobody"],
        ["scale", "nobody", "1"],
        ["logs", "nobody"],
        ["wait", "nobody"],
        ["delete", "nobody"],
    ):
        done = services.run(*command)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
        assert "nobody" in done.stderr and "pagefleet get -A" in done.stderr


def test_a_service_without_pods_has_no_logs_yet(services: Services) -> None:
    services.create("quiet")
    done = services.run("logs", "quiet")
    assert done.returncode == 1 and "quiet has no engine pod; there are: none" in done.stderr
    services.run("delete", "quiet")


def test_a_deletion_that_somebodys_finalizer_holds_up_names_it(services: Services) -> None:
    services.create("held")
    services.hold("held", "other.example/keep")
    done = services.run("delete", "held", "held", "--timeout", "1")
    assert done.returncode == 1
    assert "the InferenceService held is held by the finalizers other.example/keep" in done.stderr
    services.hold("held")
    assert services.run("wait", "held", "--timeout", "1").returncode == 1  # it is gone
