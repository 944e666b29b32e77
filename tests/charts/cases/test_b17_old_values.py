"""B17, the rendering: a section that is null, or that an older release didn't have, never ends in a nil trace."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import CHART, Object, helm, put, render
from tests.charts.test_templates import assert_known
from tests.charts.values import DEFAULTS, leaves

_TOP = tuple(DEFAULTS)
_SECTIONS = sorted({path.rpartition(".")[0] for path, _ in leaves()} - {""} - set(_TOP))
# Open objects and lists; those that are null are gone, all other values are the defaults again.
_GONE = ("resources",)


def _comparable(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] != "Secret"]


@pytest.mark.parametrize("section", [*_TOP, *_SECTIONS])
def test_b17_a_section_that_is_null_means_its_defaults(section: str) -> None:
    objects = render(put({}, section, None))
    assert_known(objects)
    if section not in _GONE:
        defaults = _comparable(render())
        # Lists that are empty by default are left out of the settings where the section was null.
        assert [each["kind"] for each in _comparable(objects)] == [each["kind"] for each in defaults]


def test_b17_every_section_at_once_may_be_null() -> None:
    assert_known(render(dict.fromkeys(_TOP)))


def test_b17_nulls_that_helm_leaves_in_mean_the_defaults_too(tmp_path: Path) -> None:
    """Where the release's own values don't know a section, as with --reuse-values, its null reaches the templates."""
    chart = tmp_path / "pagefleet"
    shutil.copytree(CHART, chart)
    (chart / "values.yaml").write_text("{}")
    nothing = {section: None for section in (*_TOP, *_SECTIONS) if "." not in section} | {"settings": {"images": None}}
    assert_known(render(nothing, chart=chart))


def test_b17_resources_that_are_null_are_none() -> None:
    (deployment,) = (each for each in render({"resources": None}) if each["kind"] == "Deployment")
    assert "resources" not in deployment["spec"]["template"]["spec"]["containers"][0]


def test_b17_as_a_part_of_another_chart_a_section_may_be_null_too(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    shutil.copytree(CHART, parent / "charts/pagefleet")
    (parent / "Chart.yaml").write_text("apiVersion: v2\nname: parent\nversion: 1.0.0\n")
    nothing = {"pagefleet": {"settings": {"images": None}, "metrics": None, "tolerations": None}}
    (parent / "values.yaml").write_text(yaml.safe_dump(nothing))
    text = helm("template", "all", parent)
    assert_known([each for each in yaml.safe_load_all(text) if each])
