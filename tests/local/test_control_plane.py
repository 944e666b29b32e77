"""The control plane starts, keeps ports, keys and data from stop to start, and two of them don't meet."""

import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import client, config

from pagefleet_local.control_plane import API_SERVER, ETCD, PROGRAMS, ControlPlane, running
from pagefleet_local.errors import FleetError
from tests.local.control_planes import binaries, throwaway

pytestmark = pytest.mark.cluster


def core(kubeconfig: Path) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))


def create_namespace(plane: ControlPlane, name: str) -> None:
    core(plane.kubeconfig).create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))


def namespaces(plane: ControlPlane) -> set[str]:
    found = core(plane.kubeconfig).list_namespace().items
    return {str(each.metadata.name) for each in found if each.metadata}


def test_pods_can_be_created_as_soon_as_it_has_started(control_plane: ControlPlane) -> None:
    api = core(control_plane.kubeconfig)
    spec = client.V1PodSpec(containers=[client.V1Container(name="c", image="none")])
    api.create_namespaced_pod("default", client.V1Pod(metadata=client.V1ObjectMeta(name="first"), spec=spec))
    api.delete_namespaced_pod("first", "default", grace_period_seconds=0)


def test_a_stopped_control_plane_starts_again_with_its_ports_keys_and_data(tmp_path: Path) -> None:
    plane = throwaway(tmp_path / "state")
    with running(plane):
        create_namespace(plane, "kept")
        url, kubeconfig = plane.url, plane.kubeconfig.read_bytes()
    assert not any(plane.processes.find(name) for name in PROGRAMS)
    with running(plane):
        assert (plane.url, plane.kubeconfig.read_bytes()) == (url, kubeconfig)
        assert "kept" in namespaces(plane)


def test_another_command_finds_the_running_processes_and_starts_only_what_is_missing(tmp_path: Path) -> None:
    plane = throwaway(tmp_path / "state")
    with running(plane):
        before = {name: plane.processes.find(name) for name in PROGRAMS}
        plane.processes.stop("kube-scheduler", 5)
        code = (
            "import sys; from pathlib import Path; from tests.local.control_planes import throwaway;"
            "throwaway(Path(sys.argv[1])).start()"
        )
        subprocess.run([sys.executable, "-c", code, tmp_path / "state"], check=True, timeout=120)
        after = {name: plane.processes.find(name) for name in PROGRAMS}
        assert after["kube-scheduler"] is not None
        assert [name for name in PROGRAMS if after[name] != before[name]] == ["kube-scheduler"]


def test_two_control_planes_run_side_by_side_and_their_users_are_strangers_to_each_other(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    other = throwaway(tmp_path / "other")
    with running(other):
        create_namespace(other, "only-here")
        assert "only-here" not in namespaces(control_plane) and other.url != control_plane.url


def test_whoever_may_use_the_api_may_not_read_the_store(control_plane: ControlPlane) -> None:
    keys, store = control_plane.keys, control_plane.ports[ETCD]
    for pair, allowed in (("admin", False), ("etcd-client", True)):
        done = subprocess.run(
            [
                *("curl", "--silent", "--show-error", "--cacert", keys / "etcd-ca.crt"),
                *("--cert", keys / f"{pair}.crt", "--key", keys / f"{pair}.key", f"https://127.0.0.1:{store}/version"),
            ],
            capture_output=True,
            check=False,
            timeout=20,
        )
        assert (done.returncode == 0) is allowed, done.stderr


def test_a_program_that_ends_at_its_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    plane = ControlPlane(
        tmp_path / "state", binaries(), durable=False, extra_arguments={API_SERVER: ["--no-such-argument"]}
    )
    with pytest.raises(FleetError, match=r"kube-apiserver ended at its start: .*no-such-argument"), running(plane):
        pass
    assert not any(plane.processes.find(name) for name in PROGRAMS)
