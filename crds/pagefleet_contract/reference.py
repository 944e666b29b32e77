"""References for people, from structural schemas: a heading for each section, a row for each field."""

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_contract import names
from pagefleet_contract.chart_values import ChartValues
from pagefleet_contract.crd import resource_schema
from pagefleet_contract.crd_schema import Schema, structural_schema
from pagefleet_contract.router import RouterConfig

_OPEN = "x-kubernetes-preserve-unknown-fields"


def inferenceservice_reference() -> str:
    """Return docs/inferenceservice.md."""
    schema = resource_schema()
    head = (
        f"# InferenceService\n\n`apiVersion: {names.API_VERSION}`, `kind: {names.KIND}`; kubectl knows it as"
        f" `{names.PLURAL}`, `{names.SINGULAR}` and `{names.SHORT_NAME}`. {schema['description']}"
        " `spec.model.uri` is all that must be given; nothing is immutable: each field of a spec can change, and the"
        " replicas follow by a roll, or live where that is possible. `kubectl explain"
        f" {names.SHORT_NAME}.spec` says the same as this page.\n"
    )
    parts = [_section("spec", schema["properties"]["spec"]), _section("status", schema["properties"]["status"])]
    rules = f"\n## The whole object\n\n{_rules(schema)}"
    return head + "".join(parts) + rules


def values_reference() -> str:
    """Return docs/values.md."""
    schema = structural_schema(ChartValues)
    head = (
        "# Values of the chart\n\nAnything else is refused, but for `global`, which parent charts use. What stands"
        " under `settings` reaches the operator as a file; a change restarts it, and never a replica of a service.\n"
    )
    return head + _section("", schema)


def router_reference() -> str:
    """Return docs/router-settings.md."""
    head = (
        "# Settings of the router\n\nWhat `pagefleet-router --config FILE` reads; the operator writes it for each"
        " service. [What the router does](router.md).\n"
    )
    return head + _section("", structural_schema(RouterConfig))


def _section(path: str, schema: Schema) -> str:
    """Return the heading and the table of one section, and then its sections."""
    title = f"\n## {path}\n\n{schema['description']}\n" if path else ""
    leaves = {name: child for name, child in schema["properties"].items() if not _sections_of(child)}
    required = schema.get("required", [])
    rows = "".join(_row(name, child, name in required) for name, child in leaves.items())
    table = f"\n| field | default | accepted | |\n| --- | --- | --- | --- |\n{rows}" if rows else ""
    rules = f"\n{_rules(schema)}" if "x-kubernetes-validations" in schema else ""
    deeper = "".join(
        _section(f"{path}.{name}{suffix}".lstrip("."), child if not suffix else child["items"])
        for name, child in schema["properties"].items()
        for suffix in _sections_of(child)
    )
    return title + table + rules + deeper


def _sections_of(schema: Schema) -> list[str]:
    """Return how a path goes on into the section that the field holds; empty where it holds none."""
    inner = {"": schema, "[]": schema.get("items", {})}
    return [suffix for suffix, held in inner.items() if "properties" in held and _OPEN not in held]


def _row(name: str, schema: Schema, required: bool) -> str:
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ("required" if required else "")
    return f"| `{name}` | {default} | {_accepted(schema)} | {schema['description'].replace('|', chr(92) + '|')} |\n"


def _accepted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    if schema["type"] == "boolean":
        return "`true`, `false`"
    if schema["type"] == "integer":
        least, most = schema.get("minimum"), schema.get("maximum")
        return f"{least:,} to {most:,}" if most is not None else (f"{least} or more" if least is not None else "number")
    if schema["type"] == "array":
        return f"list of {_plural(schema['items'])}, at most {schema['maxItems']}"
    if schema["type"] == "object":
        return (
            "object"
            if _OPEN in schema
            else f"map of {_plural(schema['additionalProperties'])}, at most {schema['maxProperties']}"
        )
    return "time" if "format" in schema else f"text, at most {schema['maxLength']:,}"


def _map_of(schema: Mapping[str, Any]) -> str:
    return f"map of {_plural(schema['additionalProperties'])}, at most {schema['maxProperties']}"


def _plural(schema: Mapping[str, Any]) -> str:
    return "quantities" if "type" not in schema else ("objects" if schema["type"] == "object" else "texts")


def _rules(schema: Schema) -> str:
    return "".join(f"- {rule['message']}\n" for rule in schema["x-kubernetes-validations"])
