"""The bed as a command: what it says where it can't be, and that it leaves the machine as it was."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.image_builds import ROOT
from tests.cluster.machine import SETTINGS, why_no_node

pytestmark = pytest.mark.cluster

BED = (sys.executable, "-m", "tests.cluster.bed")


@pytest.fixture(scope="module", autouse=True)
def _a_machine_that_can() -> Iterator[None]:
    if reason := why_no_node():
        pytest.skip(reason)
    yield


def _bed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*BED, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _machine() -> dict[str, object]:
    """What a node changes while it runs."""
    return {
        **{name: (Path("/proc/sys") / name).read_text() for name in SETTINGS},
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "resolver": Path("/etc/resolv.conf").read_bytes() if Path("/etc/resolv.conf").exists() else None,
        "folders": sorted(str(path) for top in ("/etc", "/run", "/var/lib") for path in Path(top).iterdir()),
        "control groups": sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("pagefleet-bed-*")),
        "leftovers": sorted(str(path) for path in Path("/tmp").glob("pagefleet-bed-*")),
    }


@pytest.mark.timeout(1200)  # where programs must be built first
def test_the_commands_exit_code_comes_out_and_the_machine_is_as_it_was_found() -> None:
    before = _machine()

    done = _bed("--", "kubectl", "get", "node", "no-such-node")

    assert done.returncode == 1, done.stderr
    assert 'nodes "no-such-node" not found' in done.stderr
    assert _machine() == before


def test_without_a_command_it_says_what_is_missing() -> None:
    done = _bed("--image", "light")

    assert done.returncode == 2
    assert "name a command to run after --" in done.stderr


def test_what_it_needs_is_built_without_a_command() -> None:
    done = _bed("--prepare")

    assert done.returncode == 0, done.stderr
    assert "programs and images are there" in done.stderr.splitlines()[-1]
