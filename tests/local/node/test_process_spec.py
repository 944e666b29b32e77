"""The whole process of a container: words, environment, folder."""

from pathlib import Path
from typing import Any

import pytest

from pagefleet_local.node.environment import ConfigError, Place, Sources
from pagefleet_local.node.process_spec import Grounds, ProcessSpec, hook_spec, process_spec
from tests.e2e.cluster import Object
from tests.local.node.nodes import pod

GROUNDS = Grounds(
    place=Place("n1", "127.1.0.9"),
    programs=Path("/env/bin"),
    home=Path("/s/home"),
    temporary=Path("/s/tmp"),
    volumes=Path("/s/volumes"),
    kubeconfig=Path("/s/kubeconfig"),
    termination_log=Path("/s/termination-log"),
    devices=(),
    address_of=lambda namespace, name: "127.64.0.9" if name == "chat" else None,
)


def spec_of(*command: str, grounds: Grounds = GROUNDS, **container: Any) -> ProcessSpec:
    made = pod("p", "ns", *command, **container)
    return process_spec(made["spec"]["containers"][0], made, grounds, Sources())


def test_nothing_is_inherited_and_python_is_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "1")
    assert spec_of("python").environment == {
        "PATH": "/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/s/home",
        "TMPDIR": "/s/tmp",
        "HOSTNAME": "p",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "LANG": "C.UTF-8",
        "PAGEFLEET_LISTEN_ADDRESS": "127.1.0.9",
        "KUBECONFIG": "",
        "CUDA_VISIBLE_DEVICES": "",
        "PAGEFLEET_MEMORY_LIMIT_BYTES": "",
    }


def test_a_process_learns_its_memory_limit_as_a_control_group_would_tell_it() -> None:
    limited = spec_of("python", resources={"limits": {"memory": "2Gi"}})
    assert limited.environment["PAGEFLEET_MEMORY_LIMIT_BYTES"] == str(2 * 2**30)


def test_words_are_expanded_and_then_brought_to_this_machine() -> None:
    found = spec_of(
        "python",
        "--config=$(CONFIG)",
        args=["http://chat.prod.svc:8000", "$$(CONFIG)"],
        env=[{"name": "CONFIG", "value": "/pagefleet/config/x"}],
        volumeMounts=[{"name": "config", "mountPath": "/pagefleet/config"}],
    )
    assert found.argv == ("python", "--config=/s/volumes/config/x", "http://127.64.0.9:8000", "$(CONFIG)")
    assert found.environment["CONFIG"] == "/s/volumes/config/x"
    assert found.folder == "/s/home"


def test_home_and_temporary_folder_may_be_volumes() -> None:
    found = spec_of(
        "python",
        env=[{"name": name, "value": "/pagefleet/tmp"} for name in ("HOME", "TMPDIR")],
        volumeMounts=[{"name": "tmp", "mountPath": "/pagefleet/tmp/", "subPath": "a"}],
        workingDir="/pagefleet/tmp",
    )
    assert found.environment["HOME"] == found.environment["TMPDIR"] == found.folder == "/s/volumes/tmp/a"


def test_a_mount_of_the_token_gives_a_kubeconfig_and_no_rewriting() -> None:
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    found = spec_of("cat", f"{path}/token", volumeMounts=[{"name": "t", "mountPath": path}])
    assert found.environment["KUBECONFIG"] == "/s/kubeconfig"
    assert found.argv[1] == f"{path}/token"


def test_a_pod_sees_its_own_devices_only_whatever_it_sets() -> None:
    grounds = Grounds(**{**vars(GROUNDS), "devices": ("GPU-a", "GPU-b")})
    found = spec_of("python", grounds=grounds, env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "7"}])
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"command": []}, "container p has no command"),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/pagefleet/v", "subPath": "../x"}]},
            "subPath '../x' leaves the volume v",
        ),
    ],
)
def test_what_cannot_be_followed_is_said_in_words(container: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(*container.pop("command", ["python"]), **container)


def test_a_hook_has_the_container_s_environment_and_folders_but_no_expansion() -> None:
    made = pod(
        "p",
        "ns",
        "python",
        volumeMounts=[{"name": "v", "mountPath": "/pagefleet/v"}],
        env=[{"name": "A", "value": "1"}],
    )
    container = made["spec"]["containers"][0]
    process = process_spec(container, made, GROUNDS, Sources())
    found = hook_spec(["cat", "/pagefleet/v/x", "$(A)"], process, container, GROUNDS)
    assert found.argv == ("cat", "/s/volumes/v/x", "$(A)")
    assert found.environment == process.environment


def test_a_termination_log_under_the_mount_root_leads_to_the_node_s_file() -> None:
    found = spec_of("python", "/pagefleet/why", terminationMessagePath="/pagefleet/why")
    assert found.argv[1] == "/s/termination-log"
