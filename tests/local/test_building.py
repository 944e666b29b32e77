"""Programs are looked for where the user says, else built once from a Go module, whatever else goes on meanwhile."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet_local.binaries import ENV_BINARIES, KUBERNETES, STORE, find_binaries
from pagefleet_local.building import Recipe, build
from pagefleet_local.control_plane import PROGRAMS
from pagefleet_local.errors import FleetError
from pagefleet_local.fetching import GO
from pagefleet_local.toolchain import find_go

FAKE_GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version go{version} linux/amd64"; exit; fi
if [ "$1" = list ]; then echo "{packages}"; exit; fi
echo "$@" >> "{folder}/calls"
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
{body}
"""


def silent(text: str) -> None:
    """Say nothing."""


def fake_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "1.26.3", body: str = "", packages: str = ""
) -> Path:
    """Put a Go on PATH that makes the file of whatever program it is asked for, and notes each call."""
    folder.mkdir(exist_ok=True)
    go = folder / "go"
    go.write_text(
        FAKE_GO.format(version=version, folder=folder, body=body or 'echo built > "$out/one"', packages=packages)
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "calls"


def recipe(folder: Path, requirement: str = "", **packages: str) -> Recipe:
    module = folder / "module"
    module.mkdir(exist_ok=True)
    (module / "go.mod").write_text(f"module example\ngo 1.26.0\n{requirement}")
    (module / "go.sum").write_text("")
    return Recipe(module, packages or {"one": "example/cmd/one"})


def programs(folder: Path, names: tuple[str, ...]) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


def test_a_folder_that_the_user_names_wins_over_the_environments(tmp_path: Path) -> None:
    flag, environment = programs(tmp_path / "flag", PROGRAMS), programs(tmp_path / "environment", PROGRAMS)
    named = {ENV_BINARIES: str(environment)}
    assert find_binaries(flag, named, tmp_path, silent) == {name: flag / name for name in PROGRAMS}
    assert find_binaries(None, named, tmp_path, silent) == {name: environment / name for name in PROGRAMS}


def test_a_named_folder_must_hold_every_program(tmp_path: Path) -> None:
    folder = programs(tmp_path / "some", ("etcd", "kube-apiserver"))
    with pytest.raises(FleetError, match="lacks kube-controller-manager, kube-scheduler; it must hold"):
        find_binaries(folder, {}, tmp_path, silent)


def test_the_installed_package_carries_what_the_build_needs() -> None:
    for each in (KUBERNETES, STORE):
        assert (each.module / "go.mod").is_file() and (each.module / "go.sum").is_file()
    versions = [line.split()[-1] for line in (KUBERNETES.module / "go.mod").read_text().splitlines() if " => " in line]
    assert len(versions) > 30 and set(versions) == {"v0.36.3"}


def test_a_program_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_go(tmp_path / "bin", monkeypatch)
    folder = build(tmp_path / "cache", recipe(tmp_path), silent)
    assert build(tmp_path / "cache", recipe(tmp_path), silent) == folder
    assert [file.name for file in folder.iterdir()] == ["one"]
    assert len(calls.read_text().splitlines()) == 1


def test_other_versions_are_built_beside_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch)
    old = build(tmp_path / "cache", recipe(tmp_path), silent)
    new = build(tmp_path / "cache", recipe(tmp_path, "require example v1.0.0\n"), silent)
    assert old != new and (old / "one").exists() and (new / "one").exists()


def test_a_build_that_fails_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch, body='touch "$out/one"; echo "one.go:3: no space left" >&2; exit 1')
    with pytest.raises(FleetError, match=r"`go build` failed: one.go:3: no space left"):
        build(tmp_path / "cache", recipe(tmp_path), silent)
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file() and file.suffix != ".lock"]


def test_a_disk_that_is_too_small_is_said_before_the_build(tmp_path: Path) -> None:
    huge = Recipe(recipe(tmp_path).module, {"one": "example/cmd/one"}, needed_bytes=1 << 60)
    with pytest.raises(FleetError, match=r"needs 1073741824 GB and .* has "):
        build(tmp_path / "cache", huge, silent)


def test_two_commands_that_build_at_once_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_go(tmp_path / "bin", monkeypatch)
    recipe(tmp_path)
    code = (
        "import sys; from pathlib import Path; from pagefleet_local.building import Recipe, build;"
        "at = Path(sys.argv[1]); build(at / 'cache', Recipe(at / 'module', {'one': 'example/cmd/one'}), print)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, tmp_path], env=os.environ) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert len(calls.read_text().splitlines()) == 1


def test_only_go_1_26_is_taken_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch, version="1.27.1")
    installed = tmp_path / "cache" / f"go-{GO.version}" / "go" / "bin"
    installed.mkdir(parents=True)
    (installed / "go").touch(mode=0o755)
    assert find_go(tmp_path / "cache", silent).command == installed / "go"
    fake_go(tmp_path / "bin", monkeypatch, version="1.26.8")
    assert find_go(tmp_path / "cache", silent).command == tmp_path / "bin" / "go"


def test_a_fetched_go_leaves_the_users_folders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch, body='echo "$GOPATH $GOCACHE" > "$out/one"')
    installed = tmp_path / "cache" / f"go-{GO.version}" / "go" / "bin"
    installed.mkdir(parents=True)
    shutil.move(tmp_path / "bin" / "go", installed / "go")
    folder = build(tmp_path / "cache", recipe(tmp_path), silent)
    places = (folder / "one").read_text().split()
    assert len(places) == 2 and all(place.startswith(str(tmp_path / "cache")) for place in places)
    assert not (tmp_path / "cache" / "go-work").exists()


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ("example/one example/two example/three", "1 of 3 packages compiled"),
        ("example/one", "all 1 packages compiled, linking"),
    ],
)
def test_a_build_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: str, said: str) -> None:
    heard = tmp_path / "heard"
    slow = f'echo example/one >&2; while [ ! -e "{heard}" ]; do sleep 0.05; done; echo built > "$out/one"'
    fake_go(tmp_path / "bin", monkeypatch, body=slow, packages=packages)
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        heard.touch()

    build(tmp_path / "cache", recipe(tmp_path), hear)
    assert re.fullmatch(rf"building one \(once, some minutes\): {said}, \d+ s", lines[0])
