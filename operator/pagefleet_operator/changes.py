"""What of the settings a roll changes, in the words of the spec."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.names import FILE_ENGINE
from pagefleet_operator.observed import Manifest

_MOST_CHANGES = 5


def settings_of(deployment: Manifest, children: Mapping[tuple[str, str], Manifest]) -> Manifest | None:
    """Return the ConfigMap that the pods of a live Deployment start with, or None where it isn't there."""
    for volume in deployment["spec"]["template"]["spec"].get("volumes") or ():
        name = str((volume.get("configMap") or {}).get("name"))
        child = children.get(("ConfigMap", name))
        if child is not None and FILE_ENGINE in (child.get("data") or {}):
            return child
    return None


def changed_settings(old: Manifest | None, new: Manifest) -> str:
    """Return which settings go from what to what; empty where none does, or where the old ones can't be read."""
    before, after = (None if one is None else _settings(one) for one in (old, new))
    if before is None or after is None:
        return ""
    changes = [
        f"{path} goes from {before.get(path)} to {after.get(path)}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    more = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return ", ".join(changes[:_MOST_CHANGES]) + more


def _settings(config_map: Manifest) -> dict[str, Any] | None:
    """Return every setting by its path, or None where they were written by a version that had others."""
    try:
        config = EngineConfig.model_validate_json(config_map["data"][FILE_ENGINE])
    except ValidationError:
        return None
    return dict(_leaves(config.model_dump(mode="json", by_alias=True, exclude_none=True), ""))


def _leaves(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item
