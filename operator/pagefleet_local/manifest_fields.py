"""Which fields of a manifest no InferenceService has: said before a fleet is started, with the name that is meant."""

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract.crd import resource_schema
from pagefleet_contract.names import KIND
from pagefleet_contract.near_names import did_you_mean

Schema = Mapping[str, Any]


def unknown_fields(service: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each field of the service that isn't one."""
    return list(_unknown(resource_schema(), service, ""))


def _unknown(schema: Schema, value: Any, path: str) -> Iterator[str]:
    known = schema.get("properties")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _unknown(schema["items"], item, f"{path}[{index}]")
    if not isinstance(value, dict) or known is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, child in value.items():
        place = f"{path}.{name}".lstrip(".")
        if name in known:
            yield from _unknown(known[name], child, place)
        else:
            yield f"{place} is no field of {KIND}{did_you_mean(str(name), known)}"
