"""What the command says of services of the fleet on this machine, which it reaches by other addresses than pods do."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from pagefleet_cli.main import app
from pagefleet_contract.names import API_VERSION
from tests.cli.small_api import small_api

_SERVICES = f"/apis/{API_VERSION}/namespaces/default/inferenceservices"
_DOORS = "/api/v1/namespaces/default/services"
_PODS = "/api/v1/namespaces/default/pods"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def _place(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "generation": 1}}


def _door(name: str) -> dict[str, Any]:
    return _place(name) | {"kind": "Service", "spec": {"clusterIP": "127.99.0.7"}}


def _service(replicas: int) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True" if replicas else "False", "reason": "Said", "observedGeneration": 1}
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), replicas)
    status = {"conditions": [ready], **counts}
    return _place("chat") | {"kind": "InferenceService", "spec": {"replicas": replicas}, "status": status}


def test_the_wide_table_shows_the_address_that_this_machine_reaches(tmp_path: Path) -> None:
    rows = [{"cells": [name, f"http://{name}.default.svc:8000"], "object": _place(name)} for name in ("chat", "new")]
    table = {"kind": "Table", "columnDefinitions": [{"name": "Name"}, {"name": "URL", "priority": 1}], "rows": rows}
    with small_api(tmp_path, {_SERVICES: table, _DOORS: {"kind": "ServiceList", "items": [_door("chat")]}}):
        here = run("get", "-o", "wide", "--state", str(tmp_path))
        elsewhere = run("get", "-o", "wide", "--kubeconfig", str(tmp_path / "kubeconfig"))
    assert [line.split() for line in here.stdout.splitlines()] == [
        ["NAME", "URL"],
        ["chat", "http://127.99.0.7:8000"],
        ["new", "http://new.default.svc:8000"],
    ]
    assert "http://chat.default.svc:8000" in elsewhere.stdout


def test_waiting_ends_with_the_address(tmp_path: Path) -> None:
    with small_api(tmp_path, {f"{_SERVICES}/chat": _service(1), f"{_DOORS}/chat": _door("chat")}):
        assert run("wait", "chat", "--state", str(tmp_path)).stdout == "chat is ready at http://127.99.0.7:8000\n"
        kubeconfig = str(tmp_path / "kubeconfig")
        assert run("wait", "chat", "--kubeconfig", kubeconfig).stdout == "chat is ready\n"


def test_a_service_without_replicas_is_waited_for_as_stopped(tmp_path: Path) -> None:
    with small_api(tmp_path, {f"{_SERVICES}/chat": _service(0), f"{_DOORS}/chat": _door("chat")}):
        done = run("wait", "chat", "--state", str(tmp_path))
    assert (done.exit_code, done.stdout) == (
        0,
        "chat is stopped (0 replicas); `pagefleet scale chat 1` starts it\n",
    )


def _pod(name: str, **state: Any) -> dict[str, Any]:
    return _place(name) | {"status": {"containerStatuses": [{"name": "engine", "state": state, "lastState": {}}]}}


def test_logs_before_a_container_has_started_say_so(tmp_path: Path) -> None:
    pods = {"kind": "PodList", "items": [_pod("chat-1", waiting={"reason": "ContainerCreating"}), _place("chat-2")]}
    with small_api(tmp_path, {_PODS: pods}):
        done = run("logs", "chat", "--state", str(tmp_path))
    assert str(done.exception) == "no container of chat has started; see `pagefleet get chat`"


def test_logs_of_a_container_that_has_started_are_asked_for(tmp_path: Path) -> None:
    pods = {"kind": "PodList", "items": [_pod("chat-1", terminated={"exitCode": 1})]}
    said = {"kind": "Log"}  # whatever it is, it is printed
    with small_api(tmp_path, {_PODS: pods, f"{_PODS}/chat-1/log": said}):
        assert run("logs", "chat", "--state", str(tmp_path)).stdout == '{"kind": "Log"}\n'


def test_kubectl_takes_the_folder_before_its_own_arguments(tmp_path: Path) -> None:
    done = run("kubectl", "--state", str(tmp_path / "none"), "get", "--state", "x")
    assert str(done.exception) == f"there is no {tmp_path / 'none' / 'kubeconfig'}; `pagefleet up` makes it"
