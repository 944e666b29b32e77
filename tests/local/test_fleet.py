"""`pagefleet up` and `down` as a person uses them, with a model that is only played: the real control plane, node,
chart, operator and router."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagefleet_local.chart import chart_folder
from pagefleet_local.commands import OPERATOR_NAMESPACE, RELEASE, Commands
from pagefleet_local.folders import cache_folder
from pagefleet_local.node_process import NODE
from pagefleet_local.processes import Processes
from pagefleet_local.tools import HELM, find_tools
from pagefleet_local.waiting import wait_for
from tests.cli.test_cli import COMMAND

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SERVICE = {
    "apiVersion": "pagefleet.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"uri": "simulated://smollm2-135m"},
        "accelerator": {"resource": "cpu", "count": 1, "memory": "512Mi"},
        "kvCache": {"budget": {"blocks": 512}},
    },
}


@dataclass(frozen=True)
class Machine:
    """A fleet of the tests, by its state folder."""

    state: Path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [COMMAND, *arguments, "--state", str(self.state)], capture_output=True, text=True, timeout=500, check=False
        )

    def up(self, *files: Path) -> str:
        """Return what it printed."""
        done = self.run("up", *map(str, files))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self) -> list[int]:
        """Return every process that has to do with this fleet: each names its folder."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.state) in entry.read_text(errors="replace"):
                    found.append(int(entry.parent.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found


def answer(url: str) -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(json.loads(response.read())["choices"][0]["finish_reason"])


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("manifest") / "service.json"
    file.write_text(json.dumps(SERVICE))
    return file


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("fleet") / "state")
    yield made
    made.run("down")
    assert made.processes() == []


def test_up_ends_with_a_url_that_answers_and_with_what_to_type_next(machine: Machine, manifest: Path) -> None:
    url, curl, get, down = machine.up(manifest).splitlines()
    assert answer(url) == "length"
    asked = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(asked.stdout)["choices"]
    shown = subprocess.run(["bash", "-c", get], capture_output=True, text=True, check=True, timeout=60)
    assert "simulated://smollm2-135m" in shown.stdout
    assert f"pagefleet down --state {machine.state}" in down


def test_a_proxy_of_the_environment_does_not_stand_in_the_way(
    machine: Machine, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    curl = machine.up(manifest).splitlines()[1]
    asked = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(asked.stdout)["choices"]
    assert machine.run("get").stdout.startswith("NAME")


def test_logs_come_from_engine_and_router(machine: Machine, manifest: Path) -> None:
    machine.up(manifest)
    for component in ("engine", "router"):
        logs = machine.run("logs", "chat", "--component", component, "--tail", "5")
        assert logs.returncode == 0 and 0 < len(logs.stdout.splitlines()) <= 5, logs.stderr


def test_a_fleet_goes_on_where_it_stopped(machine: Machine, manifest: Path) -> None:
    url = machine.up(manifest).splitlines()[0]
    kubeconfig = (machine.state / "kubeconfig").read_bytes()
    stopped = machine.run("down")
    assert stopped.returncode == 0 and "stopped node, etcd" in stopped.stdout, stopped.stderr
    assert machine.processes() == []
    assert "nothing ran" in machine.run("down").stdout
    assert machine.up().splitlines()[0] == url
    assert answer(url) == "length"
    assert machine.run("get", "chat", "-o", "wide").stdout.split()[-1] == url
    assert (machine.state / "kubeconfig").read_bytes() == kubeconfig


def test_a_killed_node_is_started_again_and_the_service_answers_meanwhile(machine: Machine, manifest: Path) -> None:
    machine.up(manifest)
    engine = [pid for pid in machine.processes() if "pagefleet_runtime" in Path(f"/proc/{pid}/cmdline").read_text()]
    node = Processes(machine.state).find(NODE)
    assert node is not None and engine
    os.kill(node.pid, signal.SIGKILL)
    assert wait_for(lambda: Processes(machine.state).find(NODE) is None, 30)
    url = machine.up(manifest).splitlines()[0]
    assert answer(url) == "length"
    assert set(engine) <= set(machine.processes())


def test_a_model_that_is_played_runs_on_gpus_that_are_not_there(
    machine: Machine, manifest: Path, tmp_path: Path
) -> None:
    """The manifest of a cluster with GPUs as it is: only its model's URI says that it is played."""
    machine.up(manifest)
    engines = {pid for pid in machine.processes() if "pagefleet_runtime" in Path(f"/proc/{pid}/cmdline").read_text()}
    large = {"model": {"uri": "simulated://llama-3.1-70b"}, "accelerator": {"count": 4, "memory": "80Gi"}}
    file = tmp_path / "large.json"
    file.write_text(json.dumps(SERVICE | {"metadata": {"name": "large"}, "spec": large}))
    done = machine.run("up", str(file), "--pretend", "nvidia.com/gpu=4")
    assert done.returncode == 0, done.stderr
    assert machine.run("delete", "large").returncode == 0
    # Another node took over what ran.
    assert engines <= set(machine.processes())


def test_an_installation_that_was_broken_off_does_not_stand_in_the_way(machine: Machine, manifest: Path) -> None:
    machine.up(manifest)
    kubeconfig = machine.state / "kubeconfig"
    tools = find_tools(cache_folder(os.environ), print)
    commands = Commands(tools, kubeconfig, machine.state / "tools")
    helm = subprocess.Popen(
        [
            *(tools[HELM], "upgrade", RELEASE, chart_folder(), f"--namespace={OPERATOR_NAMESPACE}"),
            *("--set=settings.scope=Cluster,nodeSelector.no=such", "--wait", f"--kubeconfig={kubeconfig}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        pending = (
            "get",
            "secret",
            f"--namespace={OPERATOR_NAMESPACE}",
            "--selector=status=pending-upgrade",
            "--output=name",
        )
        assert wait_for(lambda: bool(commands.kubectl(*pending)), 60)
    finally:
        helm.kill()
        helm.wait()
    machine.up(manifest)


def test_two_fleets_run_side_by_side(machine: Machine, manifest: Path, tmp_path: Path) -> None:
    first, other = machine.up(manifest).splitlines()[0], Machine(tmp_path / "other")
    try:
        second = other.up(manifest).splitlines()[0]
        assert first != second
        assert answer(first) == answer(second) == "length"
    finally:
        purged = other.run("down", "--purge")
    assert purged.returncode == 0 and not other.state.exists() and other.processes() == []
    assert answer(first) == "length"
