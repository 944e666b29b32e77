"""What an installed definition lacks of this version's: the API server drops such fields from every manifest."""

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract import names
from pagefleet_contract.crd import resource_schema
from pagefleet_contract.crd_schema import Schema

# Where any authenticated client may read the schemas of our API.
OPENAPI_PATH = f"/openapi/v3/apis/{names.API_VERSION}"

_KIND = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}


def missing_fields(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of fields that this version knows and the API server's OpenAPI document doesn't have. Of a
    section that is missing only its own path. Raises LookupError where the document doesn't describe our kind."""
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        if _KIND in (schema.get("x-kubernetes-group-version-kind") or ()):
            return tuple(_missing(resource_schema(), schema, ()))
    raise LookupError(f"{OPENAPI_PATH} describes no {names.KIND}")


def _missing(wanted: Schema, installed: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = installed.get("properties") or {}
    for name, field in wanted.get("properties", {}).items():
        if name in there:
            yield from _missing(field, there[name], (*path, name))
        else:
            yield ".".join((*path, name))
    for inner in ("items", "additionalProperties"):
        if inner in wanted and isinstance(installed.get(inner), Mapping):
            yield from _missing(wanted[inner], installed[inner], path)
