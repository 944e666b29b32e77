"""How services are shown: as the table that the API server makes, or as the objects themselves."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from pagefleet_cli.console import printable

Object = dict[str, Any]


def as_table(table: Object, *, wide: bool, with_namespace: bool) -> str:
    """Return a server's table as text; columns of a priority above 0 are for the wide form."""
    return "\n".join(_lines(table, wide=wide, with_namespace=with_namespace))


def changed_lines(tables: Iterable[Object], *, wide: bool, with_namespace: bool) -> Iterator[str]:
    """Yield the head and, of each table, the rows that the one before didn't have like this, but for their ages."""
    before: dict[str, list[object]] = {}
    head_is_out = False
    for table in tables:
        head, *lines = _lines(table, wide=wide, with_namespace=with_namespace)
        if lines and not head_is_out:
            yield head
            head_is_out = True
        now = {_place(row): _without_ages(table, row) for row in table["rows"]}
        for row, line in zip(table["rows"], lines, strict=True):
            if before.get(_place(row)) != now[_place(row)]:
                yield line
        yield from (f"{place} is gone" for place in before if place not in now)
        before = now


def _place(row: Object) -> str:
    return f"{row['object']['metadata']['namespace']}/{row['object']['metadata']['name']}"


def _without_ages(table: Object, row: Object) -> list[object]:
    columns = zip(table["columnDefinitions"], row["cells"], strict=True)
    return [cell for column, cell in columns if column.get("type") != "date"]


def _lines(table: Object, *, wide: bool, with_namespace: bool) -> list[str]:
    columns = [at for at, column in enumerate(table["columnDefinitions"]) if wide or column.get("priority", 0) == 0]
    head = [str(table["columnDefinitions"][at]["name"]).upper() for at in columns]
    rows = [[_cell(row["cells"][at]) for at in columns] for row in table["rows"]]
    if with_namespace:
        head = ["NAMESPACE", *head]
        namespaces = [str(row["object"]["metadata"]["namespace"]) for row in table["rows"]]
        rows = [[namespace, *row] for namespace, row in zip(namespaces, rows, strict=True)]
    widths = [max(len(line[at]) for line in [head, *rows]) for at in range(len(head))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *rows]]
    return [line.rstrip() for line in lines]


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def as_names(found: Object) -> str:
    return "\n".join(str(each["metadata"]["name"]) for each in found.get("items", [found]))


def as_json(found: Object) -> str:
    return json.dumps(_plain(found), indent=2)


def as_yaml(found: Object) -> str:
    return yaml.safe_dump(_plain(found), sort_keys=False).rstrip()


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _plain(found: Object) -> Object:
    """Return the objects without the bookkeeping of server-side apply, which nobody reads here."""
    if "items" in found:
        return found | {"items": [_plain(each) for each in found["items"]]}
    return found | {"metadata": {key: value for key, value in found["metadata"].items() if key != "managedFields"}}
