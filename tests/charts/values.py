"""Values for the chart's tests: a change of each, and random ones over the space that the schema admits."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from pagefleet_contract.chart_values import ChartValues
from pagefleet_contract.crd_schema import Schema, structural_schema
from tests.contract.schemas import documents

Values = dict[str, Any]
SCHEMA = structural_schema(ChartValues)
DEFAULTS: Values = ChartValues().model_dump(mode="json", by_alias=True)

TOLERATIONS = [{"operator": "Exists"}, {"key": "pool", "value": "ml", "effect": "NoSchedule", "operator": "Equal"}]
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["ml"]}]}]
        }
    }
}
SPREAD = [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}]
EXTRA = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}, "data": {"of": "{{ .Release.Name }}"}}

# What only Kubernetes can check, as it would be right.
OPEN: dict[str, tuple[Any, ...]] = {
    "resources": ({}, {"limits": {"memory": "1Gi", "cpu": 2}}, {"requests": {"cpu": "1500m"}}),
    "tolerations": ([], TOLERATIONS),
    "affinity": ({}, AFFINITY),
    "topologySpreadConstraints": ([], SPREAD),
    "extraEnv": ([], [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]),
    "extraObjects": ([], [EXTRA]),
}

# Values that do something only beside others.
BESIDE: dict[str, Values] = {
    "metrics.podMonitor.labels": {"metrics": {"podMonitor": {"enabled": True}}},
    "metrics.podMonitor.intervalSeconds": {"metrics": {"podMonitor": {"enabled": True}}},
    "test.namespace": {"test": {"service": "chat"}},
    "test.apiKeyEntry": {"test": {"service": "chat", "apiKeySecret": "keys"}},
}


def leaves(schema: Schema = SCHEMA, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield path and schema of every value that is no section."""
    for name, child in schema["properties"].items():
        is_section = "properties" in child
        yield from leaves(child, f"{path}{name}.") if is_section else [(f"{path}{name}", child)]


def default_of(path: str) -> Any:
    value: Any = DEFAULTS
    for name in path.split("."):
        value = value[name]
    return value


def changed(path: str, schema: Schema) -> Any:
    """Return a value that isn't the default."""
    default = default_of(path)
    if path == "nameOverride":
        return "other"
    if path in OPEN:
        return OPEN[path][1]
    if schema.get("type") == "boolean":
        return not default
    if schema.get("type") == "integer":
        return default + 1
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default)
    if schema.get("type") == "object":
        return {"example.com/team": "search"}
    return ["other"] if schema.get("type") == "array" else "512"


def random_values() -> st.SearchStrategy[Values]:
    """Return values that the schema admits and that fit each other."""
    admitted: dict[str, Any] = {
        name: st.sampled_from(OPEN[name]) if name in OPEN else documents(child)
        for name, child in SCHEMA["properties"].items()
    }
    return st.fixed_dictionaries({}, optional=admitted).map(_fitting)


def _fitting(values: Values) -> Values:
    settings = values.get("settings", {})
    if settings.get("scope") == "Cluster":
        settings.pop("watchNamespaces", None)
    return values
