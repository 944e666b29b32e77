"""A container's environment from its manifest: literals, the downward API, ConfigMaps, Secrets, `$(NAME)`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from pagefleet_local.node.pods import Manifest, name_of, namespace_of, uid_of
from pagefleet_local.node.quantities import divided, quantity

_REFERENCE = re.compile(r"\$(?:\$|\(([^)$]*)\))")
_MAP_FIELD = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


class ConfigError(Exception):
    """The container can't be made yet: something that its manifest names is missing or unknown."""


@dataclass(frozen=True)
class Sources:
    """The ConfigMaps and Secrets of the pod's namespace that exist, by name, and what a pod may use of the machine."""

    config_maps: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a pod runs: what the downward API says that isn't in the manifest."""

    node: str
    address: str
    host_address: str = "127.0.0.1"


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` where NAME is known; `$$` stands for one `$`, so `$$(NAME)` is left as `$(NAME)`."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


def declared_environment(
    container: Manifest, pod: Manifest, place: Place, sources: Sources, fixed: Mapping[str, str]
) -> dict[str, str]:
    """Return what the container's `envFrom` and `env` say, in that order, later entries over earlier ones; what is
    fixed stays, for the entries that refer to it too."""
    values: dict[str, str] = {}
    for entry in container.get("envFrom") or ():
        values |= _imported(entry, namespace_of(pod), sources)
    values |= fixed
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            value = _value_from(entry["valueFrom"], container, pod, place, sources)
        else:
            value = expand(entry.get("value") or "", values)
        if value is not None and entry["name"] not in fixed:
            values[entry["name"]] = value
    return values


def _imported(entry: Manifest, namespace: str, sources: Sources) -> dict[str, str]:
    for kind, key, found in (
        ("configmap", "configMapRef", sources.config_maps),
        ("secret", "secretRef", sources.secrets),
    ):
        reference = entry.get(key)
        if reference is None:
            continue
        if reference["name"] not in found:
            if reference.get("optional"):
                return {}
            raise ConfigError(f'{kind} "{reference["name"]}" not found in namespace {namespace}')
        prefix = entry.get("prefix") or ""
        return {prefix + name: _text(data, name) for name, data in found[reference["name"]].items() if "=" not in name}
    raise ConfigError(f"envFrom names {sorted(entry)}; this node knows configMapRef and secretRef")


def _value_from(source: Manifest, container: Manifest, pod: Manifest, place: Place, sources: Sources) -> str | None:
    if reference := source.get("configMapKeyRef"):
        return _key(reference, "configmap", sources.config_maps, namespace_of(pod))
    if reference := source.get("secretKeyRef"):
        return _key(reference, "secret", sources.secrets, namespace_of(pod))
    if reference := source.get("fieldRef"):
        return pod_field(reference["fieldPath"], pod, place)
    if reference := source.get("resourceFieldRef"):
        return resource_field(reference, container, sources.allocatable)
    raise ConfigError(
        f"valueFrom names {sorted(source)}; "
        "this node knows configMapKeyRef, secretKeyRef, fieldRef and resourceFieldRef"
    )


def _key(reference: Manifest, kind: str, found: Mapping[str, Mapping[str, bytes]], namespace: str) -> str | None:
    name, key = reference["name"], reference["key"]
    if name in found and key in found[name]:
        return _text(found[name][key], key)
    if reference.get("optional"):
        return None
    if name not in found:
        raise ConfigError(f'{kind} "{name}" not found in namespace {namespace}')
    raise ConfigError(f"couldn't find key {key} in {kind} {namespace}/{name}")


def _text(data: bytes, name: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the value of {name} is no UTF-8 text, so it can't stand in the environment") from error
    if "\0" in text:
        raise ConfigError(f"the value of {name} holds a zero byte, so it can't stand in the environment")
    return text


def pod_field(path: str, pod: Manifest, place: Place) -> str:
    """Return what the downward API says of a field of the pod."""
    if match := _MAP_FIELD.match(path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    fields = {
        "metadata.name": name_of(pod),
        "metadata.namespace": namespace_of(pod),
        "metadata.uid": uid_of(pod),
        "metadata.labels": _map_lines(pod["metadata"].get("labels")),
        "metadata.annotations": _map_lines(pod["metadata"].get("annotations")),
        "spec.nodeName": place.node,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName") or "default",
        "status.hostIP": place.host_address,
        "status.hostIPs": place.host_address,
        "status.podIP": place.address,
        "status.podIPs": place.address,
    }
    if path not in fields:
        raise ConfigError(f"the downward API of this node has no field {path}; it knows {', '.join(sorted(fields))}")
    return fields[path]


def _map_lines(values: Manifest | None) -> str:
    return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted((values or {}).items()))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_field(reference: Manifest, container: Manifest, allocatable: Mapping[str, str]) -> str:
    """Return a limit or request of the container; a limit that it doesn't set is what the node can give."""
    kind, _, resource = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get(resource, allocatable.get(resource, "0"))
    value = limit if kind == "limits" else (resources.get("requests") or {}).get(resource, "0")
    amount: Decimal = quantity(value)
    return str(divided(amount, str(reference.get("divisor") or "1")))
