"""What a spec may ask for in vain is said in the status, the reference and `kubectl explain`, from one table."""

from typing import Any

import pytest

from pagefleet_contract.crd import resource_schema
from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.unhonoured import UNHONOURED, Unhonoured, notes_of

SPEC = {"model": {"uri": "simulated://llama-3.1-8b"}}
# What is asked of the fields that have no effect with any value.
ASKED = {
    "kvCache.swap.hostMemory": "8Gi",
    "kvCache.swap.highWatermarkPercent": 90,
    "kvCache.swap.lowWatermarkPercent": 70,
    "routing.loadCapPercent": 150,
    "tenancy.kvQuotaPercent.default": 50,
}
by_field = pytest.mark.parametrize("one", UNHONOURED, ids=lambda one: one.field)


def asking(field: str, value: Any) -> InferenceServiceSpec:
    """Return a spec with one field given, by its path."""
    document: Any = value
    for name in reversed(field.split(".")):
        document = {name: document}
    return InferenceServiceSpec.model_validate({**SPEC, **document})


def schema_of(path: str) -> dict[str, Any]:
    found: dict[str, Any] = resource_schema()["properties"]["spec"]
    for name in path.split("."):
        found = found["properties"][name]
    return found


@by_field
def test_what_has_no_effect_is_noted_when_it_is_asked_for_and_marked_where_it_is_described(one: Unhonoured) -> None:
    for value in one.values or (ASKED[one.field],):
        (note,) = notes_of(asking(one.field, value))
        assert note == f"{one.field} is {value}; {one.instead}"
    place = schema_of(one.section or one.field)
    assert f"ot in effect in this version: {one.instead}." in place["description"]
    assert all(value in place["description"] for value in one.values if not one.section)


def test_of_a_section_without_effect_its_parts_are_marked_too() -> None:
    assert "Not in effect in this version" in schema_of("autoscaling.scaleToZero")["description"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"autoscaling": {"class": "External"}},
        {"routing": {"mode": "Service", "loadCapPercent": 125}},
        {"kvCache": {"swap": {"mode": "Disabled"}}, "tenancy": {"kvQuotaPercent": {"default": 100}}},
    ],
)
def test_what_is_in_force_and_what_is_not_asked_for_needs_no_note(spec: dict[str, Any]) -> None:
    assert notes_of(InferenceServiceSpec.model_validate({**SPEC, **spec})) == []


def test_an_autoscaling_that_is_left_at_its_defaults_is_asked_for_all_the_same() -> None:
    (note,) = notes_of(InferenceServiceSpec.model_validate({**SPEC, "autoscaling": {}}))
    assert note.startswith("autoscaling.class is Builtin; nothing scales by itself")
