"""B01: names near the limit of 63. Derived names are cut with a hash, stable and different."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.actions import Plan
from tests.operator.builders import applied, observed, planned, settings, spec

LONG = "a-model-name-that-uses-every-one-of-the-sixty-three-characters0"
_NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def plan_for(name: str, namespace: str = "prod") -> Plan:
    return planned(observed(spec(), name=name, namespace=namespace), settings(networkPolicies="Enabled"))


def child_names(name: str) -> set[tuple[str, str]]:
    return set(applied(plan_for(name)))


@pytest.mark.parametrize("length", [1, 52, 57, 58, 63])
def test_b01_every_length_gives_names_that_dns_and_labels_take(length: int) -> None:
    name = LONG[:length].rstrip("-") + "x" * (length - len(LONG[:length].rstrip("-")))
    for kind, child in child_names(name):
        assert len(child) <= 63, (kind, child)
        assert child[0].isalpha() and child[-1].isalnum()
    for manifest in applied(plan_for(name, namespace="n" * 63)).values():
        labels = {
            **manifest["metadata"]["labels"],
            **manifest.get("spec", {}).get("selector", {}).get("matchLabels", {}),
        }
        assert all(len(value) <= 63 for value in labels.values())


def test_b01_names_that_differ_only_at_their_end_give_different_children() -> None:
    one, other = child_names(LONG[:60] + "abc"), child_names(LONG[:60] + "abd")
    assert one.isdisjoint(other)


@given(_NAME)
def test_b01_names_are_stable_short_and_name_the_pods_consistently(name: str) -> None:
    found = applied(plan_for(name))
    assert found == applied(plan_for(name))
    assert all(len(child) <= 63 for _, child in found)
    (deployment,) = [child for key, child in found.items() if key[0] == "Deployment" and key[1].endswith("-engine")]
    named = {
        volume["configMap"]["name"]
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    }
    assert named <= {child for kind, child in found if kind == "ConfigMap"}


@given(_NAME, _NAME)
def test_b01_no_two_services_share_a_child(one: str, other: str) -> None:
    if one != other:
        assert child_names(one).isdisjoint(child_names(other))


def test_b01_services_named_like_children_share_none() -> None:
    names = ["chat", "chat-engine", "chat-live", "chat-router", "chat-engine-engine"]
    found = [child_names(name) for name in names]
    assert len(set().union(*found)) == sum(map(len, found))
