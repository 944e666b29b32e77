"""From pydantic models to a structural schema, as CustomResourceDefinitions want it.

References are put in place, what may be absent isn't required and never null, and nothing is dropped in silence: a
keyword, a type or an unbounded value that isn't known to be right here raises SchemaRefused.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

Schema = dict[str, Any]

# Taken over as they are.
_PLAIN = (
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
)
_HANDLED = (
    "$ref",
    "$defs",
    "title",
    "description",
    "default",
    "const",
    "anyOf",
    "items",
    "properties",
    "additionalProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
)
_BOUND = {"string": "maxLength", "array": "maxItems"}
_JSON_TYPES = {bool: "boolean", int: "integer", str: "string"}


class SchemaRefused(Exception):
    """A model can't be written as a structural schema; the message names the field and what to change."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of the model. Raises SchemaRefused."""
    document = model.model_json_schema(by_alias=True, schema_generator=_WithRules)
    return _structural(document, document.get("$defs", {}), (), ())


class _WithRules(GenerateJsonSchema):
    """JSON schema with the CEL rules of sections."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        rendered = super().model_schema(schema)
        rules = getattr(schema["cls"], "cel_rules", ())
        if rules:
            rendered["x-kubernetes-validations"] = [rule.as_schema() for rule in rules]
        return rendered

    def encode_default(self, dft: Any) -> Any:
        # In full, though a section's own defaults would fill it: the API server checks its rules on what stands here.
        return _without_empty(dft.model_dump(mode="json", by_alias=True)) if isinstance(dft, BaseModel) else dft


def _without_empty(value: Any) -> Any:
    """Return the value without what says no more than its absence: null, and empty lists, maps and texts."""
    if not isinstance(value, dict):
        return value
    found = {name: _without_empty(child) for name, child in value.items()}
    return {name: child for name, child in found.items() if child not in (None, "", [], {})}


def _structural(
    schema: Mapping[str, Any], named: Mapping[str, Any], path: tuple[str, ...], seen: tuple[str, ...]
) -> Schema:
    schema, seen = _resolved(schema, named, path, seen)
    unknown = [keyword for keyword in schema if keyword not in _PLAIN and keyword not in _HANDLED]
    if unknown:
        raise SchemaRefused(
            f"{_spelled(path)} has {', '.join(unknown)}; teach crd_schema what it means, or leave it out"
        )
    found: Schema = {}
    if "description" in schema:
        found["description"] = " ".join(schema["description"].split())
    found |= {keyword: schema[keyword] for keyword in _PLAIN if keyword in schema}
    if "const" in schema:
        found["enum"] = [schema["const"]]
    if "enum" in found:
        found["type"] = _enum_type(found["enum"], path)
    found |= _exclusive_bounds(schema)
    found |= _children(schema, named, path, seen)
    _check_bounds(found, path)
    default = _without_empty(schema.get("default"))
    if default not in (None, "", [], {}):
        found["default"] = default
    return found


def _resolved(
    schema: Mapping[str, Any], named: Mapping[str, Any], path: tuple[str, ...], seen: tuple[str, ...]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the schema with its reference or its optional type put in place; what stands beside it wins."""
    while True:
        beside = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "anyOf")}
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            if name in seen:
                raise SchemaRefused(f"{_spelled(path)} holds {name}, which holds itself; a resource can't")
            seen = (*seen, name)
            schema = {**named[name], **beside}
        elif "anyOf" in schema:
            kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
            if len(kinds) != 1:
                raise SchemaRefused(f"{_spelled(path)} is one of {len(kinds)} types; a field of a resource has one")
            schema = {**kinds[0], **beside}
        else:
            return schema, seen


def _children(
    schema: Mapping[str, Any], named: Mapping[str, Any], path: tuple[str, ...], seen: tuple[str, ...]
) -> Schema:
    found: Schema = {}
    if "properties" in schema:
        found["properties"] = {
            name: _structural(child, named, (*path, name), seen) for name, child in schema["properties"].items()
        }
    if "items" in schema:
        found["items"] = _structural(schema["items"], named, (*path, "[]"), seen)
    more = schema.get("additionalProperties", False)
    if isinstance(more, Mapping) and "properties" not in schema:
        found["additionalProperties"] = _structural(more, named, (*path, "{}"), seen)
    elif more is not False:
        raise SchemaRefused(f"{_spelled(path)} takes any field; say which, or mark it with Open")
    return found


def _exclusive_bounds(schema: Mapping[str, Any]) -> Schema:
    """Return numeric exclusive bounds in the form of OpenAPI 3.0: a bound and a flag."""
    found: Schema = {}
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            found |= {plain: schema[exclusive], exclusive: True}
    return found


def _enum_type(values: list[Any], path: tuple[str, ...]) -> str:
    kinds = {_JSON_TYPES.get(type(value)) for value in values}
    kind = kinds.pop()
    if kinds or kind is None:
        raise SchemaRefused(f"{_spelled(path)} is one of {values!r}; expected texts alone or whole numbers alone")
    return kind


def _check_bounds(schema: Schema, path: tuple[str, ...]) -> None:
    if "x-kubernetes-int-or-string" in schema:
        return
    kind = schema.get("type")
    if kind is None or kind == "number" or isinstance(kind, list):
        raise SchemaRefused(f"{_spelled(path)} has type {kind!r}; expected one type, and no fractions")
    bound = "maxProperties" if "additionalProperties" in schema else _BOUND.get(kind)
    if bound is not None and bound not in schema and "enum" not in schema and "format" not in schema:
        raise SchemaRefused(f"{_spelled(path)} has no {bound}; the cost of rules and the size of a resource need one")


def _spelled(path: tuple[str, ...]) -> str:
    return ".".join(path) or "the model"
