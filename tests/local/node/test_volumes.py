"""What volumes hold, and how their folders change."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_local.node.environment import ConfigError, Place, Sources
from pagefleet_local.node.folders import PodFolder, link_folder, pod_folder, pod_folders, write_files
from pagefleet_local.node.objects import object_data
from pagefleet_local.node.records import PodRecord
from pagefleet_local.node.volumes import (
    File,
    Reference,
    TokenRequest,
    references,
    token_requests,
    volume_files,
)
from tests.e2e.cluster import Object
from tests.local.node.nodes import pod

PLACE = Place("n1", "127.1.0.9")
SOURCES = Sources(
    config_maps={"c": {"a": b"1", "b": b"2"}}, secrets={"s": {"k": b"\x00\xff"}}, allocatable={"memory": "1Gi"}
)


def files(volume: Object) -> dict[str, File]:
    made = pod("p", "ns", "true", resources={"limits": {"cpu": "2"}})
    made["metadata"]["uid"] = "u"
    return volume_files(volume, made, PLACE, SOURCES, {TokenRequest("", 3607): b"token"})


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"configMap": {"name": "c"}}, {"a": File(b"1", 0o644), "b": File(b"2", 0o644)}),
        ({"secret": {"secretName": "s", "defaultMode": 0o400}}, {"k": File(b"\x00\xff", 0o400)}),
        (
            {"configMap": {"name": "c", "items": [{"key": "a", "path": "x/y", "mode": 0o600}]}},
            {"x/y": File(b"1", 0o600)},
        ),
        ({"configMap": {"name": "none", "optional": True}}, {}),
        ({"configMap": {"name": "c", "optional": True, "items": [{"key": "z", "path": "z"}]}}, {}),
        (
            {
                "downwardAPI": {
                    "items": [
                        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                        {"path": "cpu", "resourceFieldRef": {"containerName": "p", "resource": "limits.cpu"}},
                    ]
                }
            },
            {"name": File(b"p", 0o644), "cpu": File(b"2", 0o644)},
        ),
        (
            {
                "projected": {
                    "defaultMode": 0o640,
                    "sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                        {"configMap": {"name": "c", "items": [{"key": "a", "path": "ca.crt"}]}},
                        {"secret": {"name": "s"}},
                        {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                    ],
                }
            },
            {
                "token": File(b"token", 0o600),
                "ca.crt": File(b"1", 0o640),
                "k": File(b"\x00\xff", 0o640),
                "ns": File(b"ns", 0o640),
            },
        ),
    ],
)
def test_a_volume_holds_what_its_manifest_says(volume: Object, expected: dict[str, File]) -> None:
    assert files(volume) == expected


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        (
            {"configMap": {"name": "c", "items": [{"key": "z", "path": "z"}]}},
            "configmap \"c\" has no key 'z'; it has a, b",
        ),
        ({"projected": {"sources": [{"clusterTrustBundle": {}}]}}, "a projected volume names"),
    ],
)
def test_what_is_missing_is_said_in_words(volume: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        files(volume)


def test_everything_that_a_pod_names_is_found() -> None:
    made = pod(
        "p",
        "ns",
        "true",
        envFrom=[{"configMapRef": {"name": "e1"}}, {"secretRef": {"name": "e2"}}],
        env=[
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "e3", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "e4", "key": "k"}}},
            {"name": "C", "value": "x"},
        ],
        spec={
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "i1"}}]}],
            "volumes": [
                {"name": "1", "configMap": {"name": "v1"}},
                {"name": "2", "secret": {"secretName": "v2"}},
                {
                    "name": "3",
                    "projected": {
                        "sources": [
                            {"configMap": {"name": "v3"}},
                            {"secret": {"name": "v4"}},
                            {"serviceAccountToken": {"path": "t", "audience": "a"}},
                        ]
                    },
                },
                {"name": "4", "emptyDir": {}},
            ],
        },
    )
    maps = {Reference("configmaps", name) for name in ("e1", "e3", "v1", "v3")}
    secrets = {Reference("secrets", name) for name in ("e2", "e4", "i1", "v2", "v4")}
    assert references(made) == maps | secrets
    assert token_requests(made) == {TokenRequest("a", 3600)}


def test_objects_are_read_as_bytes() -> None:
    assert object_data({"kind": "ConfigMap", "data": {"a": "ä"}, "binaryData": {"b": "/w=="}}) == {
        "a": "ä".encode(),
        "b": b"\xff",
    }
    # In a list an item has no kind; a Secret's type tells it.
    assert object_data({"type": "Opaque", "data": {"k": "AP8="}}) == {"k": b"\x00\xff"}


def read(folder: Path) -> dict[str, bytes]:
    visible = [path for path in folder.iterdir() if not path.name.startswith("..")]
    found: dict[str, bytes] = {}
    for path in visible:
        for each in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
            found[str(each.relative_to(folder))] = each.read_bytes()
    return found


NAMES = st.sampled_from(["a", "b", "c", "d/e", "d/f", "g/h/i"])
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=5), max_size=5)


@settings(max_examples=30)
@given(st.lists(CONTENTS, min_size=1, max_size=5))
def test_a_folder_holds_the_last_contents_and_nothing_of_the_ones_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("volume") / "v"
    before: dict[str, bytes] | None = None
    for contents in steps:
        changed = write_files(folder, {name: File(data, 0o640) for name, data in contents.items()})
        assert read(folder) == contents
        assert changed is (before != contents)
        before = contents
        kept = [path for path in folder.iterdir() if path.name.startswith("..20")]
        assert len(kept) == 1


def test_a_reader_never_sees_files_of_two_states(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644), "b": File(b"1", 0o644)})
    held = os.readlink(tmp_path / "..data")
    assert os.readlink(tmp_path / "a") == "..data/a"
    write_files(tmp_path, {"a": File(b"2", 0o644), "b": File(b"2", 0o644)})
    assert os.readlink(tmp_path / "..data") != held
    assert os.readlink(tmp_path / "a") == "..data/a"


def test_the_link_to_the_present_state_is_never_missing(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"0", 0o644)})
    missing, done = list[OSError](), threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                os.readlink(tmp_path / "..data")
            except OSError as error:
                missing.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(300):
        write_files(tmp_path, {"a": File(str(number).encode(), 0o644)})
    done.set()
    thread.join()
    assert missing == []


def test_modes_are_kept_and_a_change_of_mode_is_a_change(tmp_path: Path) -> None:
    assert write_files(tmp_path, {"k": File(b"x", 0o400)})
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o400
    assert not write_files(tmp_path, {"k": File(b"x", 0o400)})
    assert write_files(tmp_path, {"k": File(b"x", 0o600)})


def test_removing_a_pod_s_folder_leaves_what_its_links_lead_to(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_text("w")
    folder = pod_folder(tmp_path, "ns", "p", "u")
    folder.save(PodRecord("u", "ns", "p", "127.1.0.1", 1, 0))
    link_folder(folder.volumes / "model", target)
    link_folder(folder.volumes / "model", target)
    assert [each.load() for each in pod_folders(tmp_path)] == [folder.load()]
    folder.remove()
    assert (target / "weights").read_text() == "w" and list(pod_folders(tmp_path)) == []


def test_the_logs_of_the_last_two_starts_are_kept(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path)
    folder.make("c")
    for start in range(4):
        folder.log("c", start).touch()
        folder.log("c", start).with_suffix(".times").touch()
    folder.forget_logs("c", before=2)
    kept = sorted(path.name for path in folder.container("c").iterdir() if path.is_file())
    assert kept == ["2.log", "2.times", "3.log", "3.times"]
