"""How deep a client's JSON is nested. The client chooses the depth, so nothing here recurses."""

from collections.abc import Mapping


def nesting_depth(value: object) -> int:
    """Return how many objects and lists stand in each other at the deepest place."""
    depth = 0
    level = [value]
    while level := [one for one in level if isinstance(one, Mapping | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return depth
