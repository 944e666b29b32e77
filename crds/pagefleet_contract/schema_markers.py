"""What a Kubernetes schema can say and a Python type can't: CEL rules, map-like lists, open objects, sizes. Each marker
writes itself into the JSON schema of the type that it annotates; the values themselves it leaves alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

_Schema = dict[str, Any]
_Handler = Callable[[Any], _Schema]

# Whole bytes, or a number with a binary or decimal suffix.
SIZE_PATTERN = r"^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$"
SIZE_LENGTH = 20


@dataclass(frozen=True, slots=True)
class CelRule:
    """One rule of `x-kubernetes-validations`. `rule` sees the object as `self`; keep to the core of CEL and to
    the libraries of the oldest Kubernetes that the chart allows."""

    rule: str
    message: str
    field_path: str | None = None

    def as_schema(self) -> dict[str, str]:
        """Return the rule as a schema has it."""
        place = {} if self.field_path is None else {"fieldPath": self.field_path}
        return {"rule": self.rule, "message": self.message, **place}


class WithRules:
    """A section whose combinations are checked by the API server."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = ()


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list whose entries are told apart by these fields: `x-kubernetes-list-type: map`."""

    keys: tuple[str, ...]

    def __get_pydantic_json_schema__(self, core: Any, handler: _Handler) -> _Schema:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.keys)}
        return handler(core) | kind


@dataclass(frozen=True, slots=True)
class ListSet:
    """A list of scalars, each at most once: `x-kubernetes-list-type: set`."""

    def __get_pydantic_json_schema__(self, core: Any, handler: _Handler) -> _Schema:
        return handler(core) | {"x-kubernetes-list-type": "set"}


@dataclass(frozen=True, slots=True)
class OpenField:
    """A text of an open object that rules look at."""

    name: str
    max_length: int
    description: str


@dataclass(frozen=True, slots=True)
class Open:
    """An object that Kubernetes itself defines and checks where it is used: unknown fields are kept. `fields` are
    required texts of it."""

    fields: tuple[OpenField, ...] = ()

    def __get_pydantic_json_schema__(self, core: Any, handler: _Handler) -> _Schema:
        schema: _Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        if self.fields:
            schema["required"] = [field.name for field in self.fields]
            schema["properties"] = {
                field.name: {"type": "string", "minLength": 1, "maxLength": field.max_length}
                | {"description": field.description}
                for field in self.fields
            }
        return schema


@dataclass(frozen=True, slots=True)
class IntOrString:
    """A text that people also write as a bare number, such as `cpu: 4`; the text's pattern isn't asked of the number,
    which must not be below 0."""

    def __get_pydantic_json_schema__(self, core: Any, handler: _Handler) -> _Schema:
        schema = {keyword: value for keyword, value in handler(core).items() if keyword != "type"}
        return schema | {"minimum": 0, "x-kubernetes-int-or-string": True}


@dataclass(frozen=True, slots=True)
class Size:
    """A Kubernetes quantity of bytes, written as text."""

    def __get_pydantic_json_schema__(self, core: Any, handler: _Handler) -> _Schema:
        return handler(core) | {"pattern": SIZE_PATTERN, "maxLength": SIZE_LENGTH}
