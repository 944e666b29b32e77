"""The shape of the tree: what packaging, import rules and readers rely on."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("crds", "operator", "runtime", "kernels")


def _packages() -> list[Path]:
    return sorted(path.parent for root in SOURCE_ROOTS for path in (ROOT / root).glob("*/__init__.py"))


def test_every_package_is_in_the_wheel_and_under_the_import_rules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    rules = settings["tool"]["importlinter"]["root_packages"]
    assert sorted(wheel) == [str(package.relative_to(ROOT)) for package in _packages()]
    assert sorted(rules) == sorted(package.name for package in _packages())


def test_every_package_says_what_it_is_for_and_is_typed() -> None:
    for package in _packages():
        assert (package / "__init__.py").read_text().startswith('"""'), package
        assert (package / "py.typed").exists(), package


def test_no_source_root_shadows_a_standard_module() -> None:
    assert [root for root in SOURCE_ROOTS if (ROOT / root / "__init__.py").exists()] == []


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_file_is_longer_than_a_head_holds() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for top in (*SOURCE_ROOTS, "tests", "examples")
        for path in (ROOT / top).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}, f"split by subject: {long}"
