"""What counts as a difference between what is applied and what is there, and what doesn't."""

from typing import Any

import pytest

from pagefleet_operator.drift import differs


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        ({"spec": {"replicas": 1}}, {"spec": {"replicas": 1, "minReadySeconds": 0}, "status": {}}),
        ({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A"}]}),
        ({"readOnly": False, "list": [], "map": {}, "none": None}, {}),
        ({"limits": {"cpu": "1000m", "memory": "1024Mi"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}),
        ({"requests": {"nvidia.com/gpu": "1"}}, {"requests": {"nvidia.com/gpu": 1}}),
        ({"requests": {"ephemeral-storage": "0.5Gi"}}, {"requests": {"ephemeral-storage": "512Mi"}}),
        ({"emptyDir": {"sizeLimit": "2048Mi"}}, {"emptyDir": {"sizeLimit": "2Gi"}}),
        ({"emptyDir": {}}, {"emptyDir": {}}),
        (
            {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]},
            {"containers": [{"name": "sidecar"}, {"name": "a", "env": [{"name": "Y"}, {"name": "X", "value": "1"}]}]},
        ),
        (
            {"ports": [{"containerPort": 8000, "name": "http"}]},
            {"ports": [{"containerPort": 8000, "name": "http", "protocol": "TCP"}]},
        ),
        ({"ports": [{"port": 8000}]}, {"ports": [{"port": 8000, "nodePort": 30000}]}),
        (
            {"tolerations": [{"key": "a", "operator": "Exists"}]},
            {"tolerations": [{"key": "a", "operator": "Exists", "effect": ""}]},
        ),
    ],
)
def test_what_the_api_server_adds_or_spells_otherwise_is_no_difference(desired: Any, live: Any) -> None:
    assert differs(desired, live) is None


@pytest.mark.parametrize(
    ("desired", "live", "told"),
    [
        ({"spec": {"replicas": 0}}, {"spec": {"replicas": 1}}, "spec.replicas is 1, not 0"),
        ({"spec": {"replicas": 1}}, {}, "spec.replicas is missing, not 1"),
        ({"immutable": True}, {"immutable": False}, "immutable is False, not True"),
        ({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A", "value": "x"}]}, "env[A].value is x, not "),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "B"}]}, "env[A] is missing"),
        ({"automountServiceAccountToken": False}, {}, "automountServiceAccountToken is missing, not False"),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, "limits.cpu is 2, not 1"),
        ({"limits": {"nvidia.com/gpu": "1"}}, {"limits": {}}, "limits[nvidia.com/gpu] is missing, not 1"),
        ({"name": "1"}, {"name": 1}, "name is 1, not 1"),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, "args[0] is b, not a"),
        ({"args": ["a"]}, {"args": ["a", "b"]}, "args has 2 entries, not 1"),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            "tolerations has 2 entries, not 1",
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": []}, "tolerations has 0 entries, not 1"),
        (
            {"ingress": [{"ports": [{"port": "http"}]}]},
            {"ingress": [{"ports": [{"port": "http"}, {"port": 22}]}]},
            "ingress[0].ports has 2 entries, not 1",
        ),
        (
            {"selector": {"a": "b"}},
            {"selector": {"a": "b", "c": "d"}},
            "selector is {'a': 'b', 'c': 'd'}, not {'a': 'b'}",
        ),
        (
            {"podSelector": {"matchLabels": {"a": "b"}}},
            {"podSelector": {"matchLabels": {"a": "b", "c": "d"}}},
            "podSelector.matchLabels is {'a': 'b', 'c': 'd'}, not {'a': 'b'}",
        ),
        ({"strategy": {"type": "x"}}, {"strategy": "x"}, "strategy is x, not {'type': 'x'}"),
        ({"args": ["a"]}, {"args": "a"}, "args is a, not ['a']"),
        ({"limits": {"cpu": "1e99999999999"}}, {"limits": {"cpu": "1"}}, "limits.cpu is 1, not 1e99999999999"),
        ({"value": "a"}, {"value": {"b": "c"}}, "value is {'b': 'c'}, not a"),
        ({"data": {"f": "x" * 100}}, {"data": {"f": "y"}}, f"data.f is y, not {'x' * 77}…"),
    ],
)
def test_a_hand_edit_of_what_is_ours_is_told_in_words(desired: Any, live: Any, told: str) -> None:
    assert differs(desired, live) == told


def test_the_first_difference_is_the_most_telling_and_always_the_same() -> None:
    desired = {"metadata": {"annotations": {"hash": "a"}}, "spec": {"b": 1, "a": 2}}
    live = {"spec": {"a": 1, "b": 2}, "metadata": {"annotations": {"hash": "b"}}}
    assert differs(desired, live) == "spec.a is 1, not 2"
