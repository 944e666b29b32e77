"""What a Kubernetes schema can say and a Python type can't: CEL rules, map-like lists, open objects. The renderer
reads them; pydantic doesn't."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class CelRule:
    """One rule of `x-kubernetes-validations`. `rule` sees the object as `self`; keep to the core of CEL."""

    rule: str
    message: str
    field_path: str | None = None


class WithRules:
    """A section whose combinations are checked by the API server."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = ()


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list whose entries are told apart by these fields: `x-kubernetes-list-type: map`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListSet:
    """A list of scalars, each at most once: `x-kubernetes-list-type: set`."""


@dataclass(frozen=True, slots=True)
class Open:
    """An object that Kubernetes itself defines and checks where it is used: unknown fields are kept."""


@dataclass(frozen=True, slots=True)
class Size:
    """A Kubernetes quantity of bytes, written as text."""
