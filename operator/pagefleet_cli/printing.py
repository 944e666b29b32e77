"""How services are shown: as the table that the API server makes, or as the objects themselves."""

import json
from typing import Any

import yaml

Object = dict[str, Any]


def as_table(table: Object, *, wide: bool, with_namespace: bool) -> str:
    """Return the lines of a server's table; columns of a priority above 0 are for the wide form."""
    columns = [at for at, column in enumerate(table["columnDefinitions"]) if wide or column.get("priority", 0) == 0]
    head = [str(table["columnDefinitions"][at]["name"]).upper() for at in columns]
    rows = [[_cell(row["cells"][at]) for at in columns] for row in table["rows"]]
    if with_namespace:
        head = ["NAMESPACE", *head]
        namespaces = [str(row["object"]["metadata"]["namespace"]) for row in table["rows"]]
        rows = [[namespace, *row] for namespace, row in zip(namespaces, rows, strict=True)]
    widths = [max(len(line[at]) for line in [head, *rows]) for at in range(len(head))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def as_names(found: Object) -> str:
    return "\n".join(str(each["metadata"]["name"]) for each in found.get("items", [found]))


def as_json(found: Object) -> str:
    return json.dumps(_plain(found), indent=2)


def as_yaml(found: Object) -> str:
    return yaml.safe_dump(_plain(found), sort_keys=False).rstrip()


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _plain(found: Object) -> Object:
    """Return the objects without the bookkeeping of server-side apply, which nobody reads here."""
    if "items" in found:
        return found | {"items": [_plain(each) for each in found["items"]]}
    return found | {"metadata": {key: value for key, value in found["metadata"].items() if key != "managedFields"}}
