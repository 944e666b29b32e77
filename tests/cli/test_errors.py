"""A user's mistake ends in one line that says what to do, with an exit code and without a traceback."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.cli.test_cli import COMMAND, run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["get"], "there is no {state}/kubeconfig; start a fleet with `pagefleet up`"),
        (["get", "--kubeconfig", "/dev/null"], "/dev/null is no kubeconfig"),
        (["get", "--kubeconfig", COMMAND], "is no kubeconfig"),
        (["get", "--kubeconfig", "/"], "/ is no kubeconfig"),
        (["up", "no-such-file.yaml"], "there is no file no-such-file.yaml; name a manifest"),
        (["up", "--binaries", "/usr"], "/usr lacks etcd, kube-apiserver"),
        (["down", "--purge"], "{state} holds no fleet; nothing is removed"),
        (["kubeconfig"], "there is no {state}/kubeconfig; `pagefleet up` makes it"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    state = tmp_path / "fleet"
    done = run(*arguments, "--state", str(state))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("pagefleet: ") and said.format(state=state) in done.stderr


def test_a_field_that_there_is_not_is_said_before_anything_is_started(tmp_path: Path) -> None:
    file, state = tmp_path / "chat.yaml", tmp_path / "fleet"
    file.write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, anything: 1}\n---\n"
        "apiVersion: pagefleet.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: chat, labels: {a: b}}\n"
        "spec:\n  model: {uri: m, servdName: x}\n  kvCache: {swap: {zzz: 1}}\n"
        "  podTemplate: {env: [{name: A, valeu: b}], nodeSelector: {any: thing}}\n"
    )
    done = run("up", str(file), "--state", str(state))
    assert done.returncode == 1 and not state.exists()
    assert done.stderr == (
        f"pagefleet: {file}, document 2: spec.model.servdName is no field of InferenceService; did you mean"
        " servedName?; spec.kvCache.swap.zzz is no field of InferenceService;"
        " spec.podTemplate.env[0].valeu is no field of InferenceService; did you mean value?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scale", "chat"], "pagefleet scale chat 2"),
        (["scale", "chat", "2", "--replicas", "3"], "--replicas 2"),
        (["get", "--watch", "-o", "json"], "--watch shows a table"),
    ],
)
def test_what_contradicts_itself_is_said_with_the_way_out(tmp_path: Path, arguments: list[str], said: str) -> None:
    _of_nobody(tmp_path)
    done = run(*arguments, "--state", str(tmp_path))
    assert done.returncode == 2 and said in done.stderr, done.stderr


def _of_nobody(folder: Path) -> None:
    """Write a kubeconfig of a cluster that doesn't answer."""
    (folder / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["delete", ""],  # would be every service of the namespace
        ["delete", "../../pods"],
        ["delete", "chat", "--namespace", ""],
        ["get", "chat?x=1"],
        ["scale", "chat/x", "1"],
        ["logs", "a,b"],
    ],
)
def test_what_is_no_name_is_never_sent(tmp_path: Path, arguments: list[str]) -> None:
    _of_nobody(tmp_path)
    done = run(*arguments, "--state", str(tmp_path))
    assert done.returncode == 1 and "is no name of a service or namespace" in done.stderr, done.stderr


def test_a_cluster_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    _of_nobody(tmp_path)
    began = time.monotonic()
    done = run("get", "--state", str(tmp_path))
    assert time.monotonic() - began < 10 and done.returncode == 1
    assert done.stderr == (
        "pagefleet: nothing answers at http://127.0.0.1:1; if it is the local fleet, `pagefleet up` starts it\n"
    )


def test_stopping_what_does_not_run_is_no_mistake(tmp_path: Path) -> None:
    done = run("down", "--state", str(tmp_path / "fleet"))
    assert done.returncode == 0 and "nothing ran" in done.stdout
    assert not (tmp_path / "fleet").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "-o", "xml"],
        ["scale", "chat", "-1"],
        ["scale", "chat", str(2**31)],
        ["scale", "chat", "--replicas", str(10**20)],
        ["scale", "chat"],
        ["wait"],
        ["get", "chat", "-A"],
        ["up", "--pretend", f"nvidia.com/gpu={10**20}"],
        ["gett"],
        ["up", "--pretend", "gpu"],
    ],
)
def test_wrong_arguments_end_with_2_and_how_to_ask_for_help(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "Error: " in done.stderr


@pytest.mark.parametrize("command", ["", "up", "get", "logs", "scale"])
def test_help_loads_nothing_that_takes_long(command: str) -> None:
    timed = [sys.executable, "-X", "importtime", COMMAND, *command.split(), "--help"]
    done = subprocess.run(timed, check=True, capture_output=True, text=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "pagefleet_cli" in loaded
    assert not {"kubernetes", "cryptography", "torch", "aiohttp"} & loaded


def test_the_printed_definition_is_the_generated_one() -> None:
    generated = Path(__file__).parents[2] / "crds" / "inferenceservices.yaml"
    done = run("crd")
    assert yaml.safe_load(done.stdout) == yaml.safe_load(generated.read_text())
