"""The files of the Helm chart that come from the contract, as text: the values with a sentence above each, their
schema, what templates fall back to, and the rules of roles."""

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_contract import names
from pagefleet_contract.chart_values import ChartValues
from pagefleet_contract.crd_schema import Schema, structural_schema
from pagefleet_contract.rights import (
    BIND_ROUTER_ROLE,
    CLUSTER_SCOPE_RIGHTS,
    OPERATOR_RIGHTS,
    ROUTER_RIGHTS,
    Right,
)
from pagefleet_contract.yaml_text import yaml_text

_WIDTH = 110
# What templates written by hand share with the programs, under the names that they have there.
_NAMES = (
    "GROUP",
    "KIND",
    "PLURAL",
    "CRD_NAME",
    "LABEL_NAME",
    "LABEL_COMPONENT",
    "NAME_VALUE",
    "COMPONENT_OPERATOR",
    "ROUTER_SERVICE_ACCOUNT",
    "MOUNT_SETTINGS",
    "FILE_SETTINGS",
    "MOUNT_ROOT_KEY",
    "FILE_ROOT_KEY",
    "MOUNT_TMP",
    "HTTP_PORT",
    "HTTP_PORT_NAME",
    "OPERATOR_PORT",
    "PATH_METRICS",
    "PATH_LIVE",
    "PATH_READY",
    "ENV_LISTEN_ADDRESS",
    "LISTEN_ALL",
    "ENV_POD_NAME",
    "ENV_POD_NAMESPACE",
    "ENV_POD_IP",
)
_OPEN = "x-kubernetes-preserve-unknown-fields"
_KUBERNETES = "x-kubernetes-"
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")


def values_yaml() -> str:
    """Return values.yaml: every default, a sentence above each."""
    return "\n".join(_commented(structural_schema(ChartValues), _defaults(), 0)) + "\n"


def values_schema(origin: str) -> Schema:
    """Return values.schema.json: nothing unknown, but for what parent charts share under `global`."""
    schema = _strict(structural_schema(ChartValues)) | {"type": "object"}
    shared = {"description": "What a parent chart shares; not read here.", "type": "object"}
    head = {"$comment": origin, "$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of pagefleet"}
    return head | schema | {"properties": schema["properties"] | {"global": shared}}


def fallbacks_template() -> str:
    """Return the values that templates need where a user has set a section to null or reuses the values of an older
    release. Lists, maps and open objects that are gone stay gone."""
    fallbacks = _scalars(structural_schema(ChartValues), _defaults())
    return define("pagefleet.fallbacks", yaml_text(fallbacks))


def names_template() -> str:
    """Return the contract's names as templates read them."""
    return define("pagefleet.names", yaml_text({name: getattr(names, name) for name in _NAMES}))


def rules_template() -> str:
    """Return the rules of the chart's roles: what the contract's table grants."""
    watched = [right for right in OPERATOR_RIGHTS if right.place == "watched"]
    own = [right for right in OPERATOR_RIGHTS if right.place == "own"]
    optional = _rules(right for right in watched if right.optional)
    # An optional right is one to PodMonitors; whoever adds another gives it a condition of its own here.
    watched_text = (
        _rules(right for right in watched if not right.optional)
        + f'{{{{- if eq .settings.podMonitors "Enabled" }}}}\n{optional}{{{{- end }}}}\n'
    )
    return "".join(
        (
            define("pagefleet.rules.watched", watched_text),
            define("pagefleet.rules.own", _rules(own, "{{ .settings.leaseName | quote }}")),
            define("pagefleet.rules.cluster", _rules(CLUSTER_SCOPE_RIGHTS)),
            define("pagefleet.rules.bind", _rules([BIND_ROUTER_ROLE], names.ROUTER_SERVICE_ACCOUNT)),
            define("pagefleet.rules.router", _rules(ROUTER_RIGHTS)),
        )
    )


def _defaults() -> dict[str, Any]:
    return ChartValues().model_dump(mode="json", by_alias=True)


def _commented(schema: Schema, values: Mapping[str, Any], depth: int) -> list[str]:
    indent = "  " * depth
    lines: list[str] = []
    for name, child in schema["properties"].items():
        if depth == 0:
            lines.append("")
        comment = f"{indent}# "
        lines += textwrap.wrap(
            child["description"], _WIDTH, initial_indent=comment, subsequent_indent=comment, break_long_words=False
        )
        if _is_section(child):
            lines.append(f"{indent}{name}:")
            lines += _commented(child, values[name], depth + 1)
        else:
            lines += textwrap.indent(yaml_text({name: values[name]}), indent).splitlines()
    return lines


def _strict(schema: Schema) -> Schema:
    """Return the structural schema as JSON schema: sections refuse what they don't know. Null stands for the default,
    as it does on Helm's command line; Helm itself takes it out of some values and leaves it in others."""
    found = {keyword: value for keyword, value in schema.items() if not keyword.startswith(_KUBERNETES)}
    unsupported = [keyword for keyword in _EXCLUSIVE if keyword in found]
    if unsupported:
        raise ValueError(f"values with {', '.join(unsupported)} are written as a bound that may be reached")
    if "properties" in found:
        found["properties"] = {name: _strict(child) for name, child in found["properties"].items()}
    if "items" in found:
        found["items"] = _strict(found["items"])
    if schema.get("x-kubernetes-list-type") == "set":
        found["uniqueItems"] = True
    kinds = ["integer", "string"] if "x-kubernetes-int-or-string" in schema else [found["type"]]
    found["type"] = [*kinds, "null"]
    if "enum" in found:
        found["enum"] = [*found["enum"], None]
    if _is_section(schema):
        found["additionalProperties"] = False
    return found


def _scalars(schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, child in schema["properties"].items():
        if _is_section(child):
            found[name] = _scalars(child, values[name])
        elif child.get("type") not in ("array", "object"):
            found[name] = values[name]
    return found


def _is_section(schema: Schema) -> bool:
    return "properties" in schema and _OPEN not in schema


def define(name: str, text: str) -> str:
    """Return a named template with the text."""
    return f'{{{{- define "{name}" }}}}\n{text}{{{{- end }}}}\n'


def _rules(rights: Iterable[Right], name: str | None = None) -> str:
    return "".join(_rule(right, name) for right in rights)


def _rule(right: Right, name: str | None) -> str:
    rule = {"apiGroups": [right.group], "resources": list(right.resources), "verbs": list(right.verbs)}
    # The name is a template of its own, so it isn't written as YAML text.
    named = "" if name is None else f"  resourceNames:\n  - {name}\n"
    return yaml_text([rule]) + named
