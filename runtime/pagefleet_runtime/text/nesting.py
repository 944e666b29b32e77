"""How deep and how wide a client's JSON is. The client chooses the depth, so nothing here recurses."""

from collections.abc import Mapping


def nesting_depth(value: object) -> int:
    """Return how many objects and lists stand in each other at the deepest place."""
    depth = 0
    level = [value]
    while level := [one for one in level if isinstance(one, Mapping | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return depth


def most_properties(schema: object) -> int:
    """Return how many properties the widest object of a JSON schema names."""
    most = 0
    level = [schema]
    while level := [one for one in level if isinstance(one, Mapping | list)]:
        named = (one["properties"] for one in level if isinstance(one, Mapping) and "properties" in one)
        most = max([most, *(len(names) for names in named if isinstance(names, Mapping))])
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return most
