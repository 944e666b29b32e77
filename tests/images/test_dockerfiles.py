"""What can be said of the Dockerfiles without building them; the test bed builds them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cluster.image_builds import IMAGES, ROOT, context_files

DOCKERFILES = sorted(image.dockerfile for image in IMAGES.values())
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _lines(dockerfile: Path) -> list[str]:
    """The instructions, with continued lines joined."""
    text = "\n".join(line for line in (ROOT / dockerfile).read_text().splitlines() if not line.startswith("#"))
    return text.replace("\\\n", "").splitlines()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=str)
def test_the_linter_finds_nothing(dockerfile: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, dockerfile], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=str)
def test_the_image_runs_as_a_user_by_number_with_a_name(dockerfile: Path) -> None:
    lines = _lines(dockerfile)
    user = next(line.split()[1] for line in reversed(lines) if line.startswith("USER "))
    number, group = user.split(":")
    assert int(number) > 0 and int(group) > 0
    assert any(f"useradd --uid {number} --gid {group}" in line for line in lines if line.startswith("RUN "))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=str)
def test_versions_of_requirements_are_the_tested_ones(dockerfile: Path) -> None:
    installs = [
        part for line in _lines(dockerfile) for part in line.split("&&") if " install " in part and "pip" in part
    ]
    assert installs
    for install in installs:
        assert "--constraint constraints.txt" in install or "--no-deps" in install


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=str)
def test_the_label_and_the_package_have_one_version(dockerfile: Path) -> None:
    assert f"ARG VERSION={_PROJECT['project']['version']}" in _lines(dockerfile)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=str)
def test_the_base_is_an_argument_whose_default_anybody_can_pull(dockerfile: Path) -> None:
    lines = _lines(dockerfile)
    assert lines[0].startswith("ARG BASE=docker.io/library/python:")
    assert "FROM ${BASE} AS requirements" in lines


def test_the_light_image_asks_for_no_extra_that_brings_torch() -> None:
    extras = _PROJECT["project"]["optional-dependencies"]
    asked = next(line for line in _lines(Path("operator/Dockerfile")) if "'.[" in line).split("'.[")[1].split("]")[0]
    assert set(asked.split(",")) == {"serving", "operator", "router"}
    assert not [
        name for extra in asked.split(",") for name in extras[extra] if name.startswith(("torch", "pagefleet[runtime"))
    ]


def test_a_build_sees_the_sources_and_what_packaging_needs_and_nothing_else() -> None:
    tops = {file.relative_to(ROOT).parts[0] for file in context_files()}
    wheel = _PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    packaged = {path.split("/")[0] for path in (*wheel["packages"], *wheel["force-include"])}
    assert tops == packaged | {"LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
