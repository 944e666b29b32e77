"""Random documents that a structural schema admits, and small faults that it must refuse."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
# Letters that every engine of regular expressions and every length agrees on.
_TEXT = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
_OPEN_OBJECTS = st.dictionaries(st.text(_TEXT, min_size=1, max_size=8), st.integers(0, 9), max_size=2)


def documents(schema: Schema) -> st.SearchStrategy[Any]:
    """Return documents that the schema admits. What rules say is left to the caller."""
    if "x-kubernetes-int-or-string" in schema:
        return st.integers(0, 10**6) | st.integers(0, 10**6).map(str)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = {"string": _texts, "integer": _numbers, "array": _lists, "object": _objects}
    if schema["type"] == "boolean":
        return st.booleans()
    return kinds[schema["type"]](schema)


def faults(schema: Schema, document: Any) -> Iterator[tuple[str, Any]]:
    """Yield (what is wrong, document) for each single fault that can be put into the document."""
    if "enum" in schema:
        yield "not one of the values", "Neither"
    elif schema.get("type") == "integer":
        yield from _beyond(schema, "maximum", 1)
        yield from _beyond(schema, "minimum", -1)
        yield "text for a number", "many"
    elif schema.get("type") == "string":
        yield "number for a text", 7
        yield "too long", "a" * (schema.get("maxLength", 10**6) + 1)
    elif schema.get("type") == "array":
        yield "no list", {}
        for index, item in enumerate(document):
            for what, wrong in faults(schema["items"], item):
                yield f"[{index}] {what}", [*document[:index], wrong, *document[index + 1 :]]
    elif "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
        yield "unknown field", {**document, "unknownField": 1}
        for name in schema.get("required", []):
            yield f"{name} missing", {key: value for key, value in document.items() if key != name}
        for name in document:
            for what, wrong in faults(schema["properties"][name], document[name]):
                yield f"{name} {what}", {**copy.deepcopy(document), name: wrong}


def strict(schema: Schema) -> Schema:
    """Return the structural schema as the API server applies it with strict field validation."""
    found = {keyword: value for keyword, value in schema.items() if not keyword.startswith("x-")}
    if "properties" in found:
        found["properties"] = {name: strict(child) for name, child in found["properties"].items()}
        found["additionalProperties"] = "x-kubernetes-preserve-unknown-fields" in schema
    if "items" in found:
        found["items"] = strict(found["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = strict(schema["additionalProperties"])
    if "x-kubernetes-int-or-string" in schema:
        found["type"] = ["integer", "string"]
    return found


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield path and schema of every field, however deep."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}{name}", child
        yield from fields(child, f"{path}{name}.")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[].")


def _texts(schema: Schema) -> st.SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 64)
    if schema.get("format") == "date-time":
        return st.just("2026-11-29T12:00:00Z")
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].replace("$", r"\Z"), fullmatch=True).filter(
            lambda text: least <= len(text) <= most and text.isascii()
        )
    return st.text(_TEXT, min_size=least, max_size=min(most, 64))


def _numbers(schema: Schema) -> st.SearchStrategy[int]:
    return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**31))


def _lists(schema: Schema) -> st.SearchStrategy[list[Any]]:
    keys = schema.get("x-kubernetes-list-map-keys", [])
    is_set = schema.get("x-kubernetes-list-type") == "set"

    def identity(item: Any) -> Any:
        return item if is_set else tuple(item[key] for key in keys)

    unique_by = identity if is_set or keys else None
    return st.lists(documents(schema["items"]), max_size=min(2, schema["maxItems"]), unique_by=unique_by)


def _objects(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        if "additionalProperties" not in schema:
            return _OPEN_OBJECTS
        keys = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=8)
        return st.dictionaries(keys, documents(schema["additionalProperties"]), max_size=2)
    required = schema.get("required", [])
    children = {name: documents(child) for name, child in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: child for name, child in children.items() if name in required},
        optional={name: child for name, child in children.items() if name not in required},
    )


def _beyond(schema: Schema, bound: str, step: int) -> Iterator[tuple[str, int]]:
    if bound in schema:
        yield f"beyond its {bound}", schema[bound] + step
