"""Which fields of a manifest no InferenceService has: said before a fleet is started, with the name that is meant."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pagefleet_contract.crd import resource_schema
from pagefleet_contract.names import GROUP, KIND
from pagefleet_contract.near_names import did_you_mean
from pagefleet_local.errors import FleetError

Schema = Mapping[str, Any]


def check_fields(file: Path) -> None:
    """Raise FleetError where a service in the file has a field that isn't one. What can't be read is kubectl's."""
    try:
        documents = list(yaml.safe_load_all(file.read_text("utf-8")))
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: no text, or 2026-13-45, which looks like a date
        return
    faults = [fault for each in documents if _is_service(each) for fault in _unknown(resource_schema(), each, "")]
    if faults:
        raise FleetError(f"{file}: {'; '.join(faults)}")


def _is_service(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and document.get("kind") == KIND
        and str(document.get("apiVersion")).startswith(f"{GROUP}/")
    )


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
