"""The chart's values: each has a sentence, each does something, and nothing else is taken."""

import functools
import re
from typing import Any

import pytest
import yaml

from tests.charts.rendering import CHART, Object, helm, put, refused, render
from tests.charts.values import BESIDE, changed, leaves

LEAVES = dict(leaves())


@functools.cache
def _rendered(path: str) -> list[Object]:
    """The default rendering, with what the value at the path needs beside it."""
    return _without_random(render(BESIDE.get(path)))


def _without_random(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] != "Secret"]


def test_the_chart_is_without_fault() -> None:
    said = helm("lint", "--strict", CHART)
    assert re.findall(r"\[(WARNING|ERROR)\].*", said) == []


def test_every_value_has_a_sentence_above_it() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    wordless = []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        # What stands below an open value, such as resources, is an example of it.
        is_value = re.match(r"\s*[a-zA-Z]+:", line) and (indent == 0 or not _below_an_open_value(lines, number))
        above = lines[number - 1].strip()
        if is_value and not (above.startswith("#") and above.endswith(".")):
            wordless.append(line)
    assert wordless == []


def _below_an_open_value(lines: list[str], number: int) -> bool:
    top = next(line for line in reversed(lines[: number + 1]) if re.match(r"[a-zA-Z]", line))
    return top.startswith("resources:")


def test_the_values_file_has_every_value_and_its_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in LEAVES:
        section: Any = values
        for name in path.split("."):
            assert name in section, path
            section = section[name]


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in ("test.apiKeySecret", "rootKey.secretName")])
def test_a_value_that_is_changed_changes_what_is_rendered(path: str) -> None:
    values = put(BESIDE.get(path, {}), path, changed(path, LEAVES[path]))
    assert _without_random(render(values)) != _rendered(path)


def test_a_named_secret_takes_the_place_of_the_one_that_is_made() -> None:
    objects = render({"rootKey": {"secretName": "given"}})
    assert [each for each in objects if each["kind"] == "Secret"] == []
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["root-key"]["secret"]["secretName"] == "given"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replica": 1}, "additional properties 'replica' not allowed"),
        (
            {"settings": {"images": {"router": "x"}}},
            "at '/settings/images': additional properties 'router' not allowed",
        ),
        ({"settings": {"workers": "many"}}, "at '/settings/workers': got string, want null or integer"),
        ({"settings": {"workers": 0}}, "at '/settings/workers': minimum: got 0, want 1"),
        ({"settings": {"scope": "cluster"}}, "at '/settings/scope': value must be one of 'Namespaced', 'Cluster'"),
        ({"crds": {"install": "yes"}}, "at '/crds/install': got string, want null or boolean"),
        ({"settings": {"scope": "Cluster", "watchNamespaces": ["a"]}}, "give one or the other"),
        ({"settings": {"watchNamespaces": ["a", "a"]}}, "at '/settings/watchNamespaces': items at 0 and 1 are equal"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_their_place(values: Object, message: str) -> None:
    assert message in refused(values)


def test_what_a_parent_chart_shares_is_taken_and_not_read() -> None:
    assert _without_random(render({"global": {"imageRegistry": "registry.example.com"}})) == _rendered("")


def test_numbers_from_the_command_line_are_amounts_too() -> None:
    text = helm("template", "pagefleet", CHART, "--set", "settings.router.cpuRequest=1")
    assert "cpuRequest: 1\n" in text
