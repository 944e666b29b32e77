"""What stands in a container's environment, from literals, the downward API, ConfigMaps and Secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_local.node.environment import (
    ConfigError,
    Place,
    Sources,
    declared_environment,
    expand,
    pod_field,
    resource_field,
)
from tests.e2e.cluster import Object
from tests.local.node.nodes import pod

PLACE = Place("n1", "127.1.0.9")
SOURCES = Sources(
    config_maps={"settings": {"size": b"7", "a=b": b"no name"}, "binary": {"raw": b"\xff"}},
    secrets={"keys": {"token": b"t"}},
    allocatable={"cpu": "4", "memory": "8Gi"},
)


def environment(*env: Object, imported: tuple[Object, ...] = (), fixed: dict[str, str] | None = None) -> dict[str, str]:
    made = pod("p", "ns", "true", env=list(env), envFrom=list(imported))
    made["metadata"]["uid"] = "u"
    return declared_environment(made["spec"]["containers"][0], made, PLACE, SOURCES, fixed or {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$$", "$"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text(alphabet="$()AB x", max_size=30))
def test_text_without_a_dollar_sign_is_left_alone_and_expansion_never_fails(text: str) -> None:
    expanded = expand(text, {"A": "1"})
    if "$" not in text:
        assert expanded == text


def test_later_entries_see_earlier_ones_only() -> None:
    found = environment({"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}, {"name": "C", "value": "$(A)$(B)"})
    assert found == {"B": "$(A)", "A": "1", "C": "1$(A)"}


def test_imports_come_first_take_a_prefix_and_skip_what_is_no_name() -> None:
    found = environment(
        {"name": "P_size", "value": "own"},
        imported=(
            {"prefix": "P_", "configMapRef": {"name": "settings"}},
            {"secretRef": {"name": "keys"}},
            {"secretRef": {"name": "none", "optional": True}},
        ),
    )
    assert found == {"P_size": "own", "token": "t"}


def test_values_of_secrets_are_not_expanded() -> None:
    sources = Sources(secrets={"keys": {"token": b"$(A)"}})
    made = pod("p", "ns", "true")
    container = {
        "name": "c",
        "env": [
            {"name": "A", "value": "1"},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        ],
    }
    assert declared_environment(container, made, PLACE, sources, {})["T"] == "$(A)"


def test_what_is_fixed_stays_for_those_who_refer_to_it_too() -> None:
    found = environment(
        {"name": "LISTEN", "value": "*"}, {"name": "URL", "value": "http://$(LISTEN)"}, fixed={"LISTEN": "127.1.0.9"}
    )
    assert found == {"LISTEN": "127.1.0.9", "URL": "http://127.1.0.9"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "x"}}, 'configmap "none" not found in namespace ns'),
        ({"secretKeyRef": {"name": "none", "key": "x"}}, 'secret "none" not found in namespace ns'),
        ({"secretKeyRef": {"name": "keys", "key": "x"}}, "couldn't find key x in secret ns/keys"),
        ({"configMapKeyRef": {"name": "binary", "key": "raw"}}, "the value of raw is no UTF-8 text"),
        ({"fieldRef": {"fieldPath": "status.phase"}}, "has no field status.phase"),
        ({"fileKeyRef": {}}, "this node knows configMapKeyRef"),
    ],
)
def test_what_is_missing_is_said_in_words(entry: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        environment({"name": "X", "valueFrom": entry})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "p"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['a/b.c']", 'say "hi"'),
        ("metadata.labels", 'app="p"'),
        ("metadata.annotations", 'a/b.c="say \\"hi\\""'),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.1.0.9"),
        ("status.podIPs", "127.1.0.9"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_the_downward_api_says_the_fields_of_the_pod(path: str, expected: str) -> None:
    made = pod("p", "ns", "true")
    made["metadata"] |= {"uid": "u", "annotations": {"a/b.c": 'say "hi"'}}
    assert pod_field(path, made, PLACE) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "8192"),
        ({"resource": "requests.memory"}, "0"),
        ({"resource": "limits.memory", "divisor": "0"}, str(8 << 30)),
    ],
)
def test_resources_are_shown_in_their_divisor_and_an_absent_limit_is_the_node_s(
    reference: Object, expected: str
) -> None:
    container = {"resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "1"}}}
    assert resource_field(reference, container, SOURCES.allocatable) == expected
