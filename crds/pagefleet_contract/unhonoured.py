"""What a spec may ask for and this version doesn't do. From this one table come the notes in a service's status, and
the words in the reference and in `kubectl explain`."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.inferenceservice import InferenceServiceSpec


@dataclass(frozen=True, slots=True)
class Unhonoured:
    """A field without effect, or some `values` of one; `instead` is what is in force. Where none of its section has an
    effect, `section` is that."""

    field: str
    instead: str
    values: tuple[str, ...] = ()
    section: str = ""


_NO_COPIES = "nothing is copied to the host"

UNHONOURED = (
    Unhonoured("kvCache.swap.mode", f"{_NO_COPIES}, Recompute is in force", ("Host", "Auto")),
    Unhonoured("kvCache.swap.hostMemory", _NO_COPIES),
    Unhonoured("kvCache.swap.highWatermarkPercent", _NO_COPIES),
    Unhonoured("kvCache.swap.lowWatermarkPercent", _NO_COPIES),
    Unhonoured(
        "routing.mode", "the replica with the fewest requests in flight is taken", ("PrefixAware", "InferencePool")
    ),
    Unhonoured("routing.loadCapPercent", "no replica is preferred for its prefix"),
    Unhonoured("tenancy.kvQuotaPercent.default", "no quota is enforced", section="tenancy.kvQuotaPercent"),
    Unhonoured(
        "autoscaling.class",
        "nothing scales by itself, whoever writes the scale subresource does",
        ("Builtin", "HPA", "KEDA"),
        section="autoscaling",
    ),
)


def notes_of(spec: InferenceServiceSpec) -> list[str]:
    """Return what of the spec has no effect, and what is in force instead."""
    whole = spec.model_dump(mode="json", by_alias=True)
    changed = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return [f"{one.field} is {_at(whole, one.field)}; {one.instead}" for one in _asked(whole, changed)]


def _asked(whole: Mapping[str, Any], changed: Mapping[str, Any]) -> Iterator[Unhonoured]:
    for one in UNHONOURED:
        if _at(whole, one.field) in one.values if one.values else _at(changed, one.field) is not None:
            yield one


def _at(document: Mapping[str, Any], path: str) -> Any:
    found: Any = document
    for name in path.split("."):
        found = (found or {}).get(name)
    return found


def with_words(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec's schema with descriptions that say what has no effect."""
    marked = copy.deepcopy(dict(schema))
    for one in UNHONOURED:
        place: dict[str, Any] = marked
        for name in (one.section or one.field).split("."):
            place = place["properties"][name]
        if one.section:
            _mark_section(place, f" Not in effect in this version: {one.instead}.")
        else:
            which = f"{' and '.join(one.values)} are not" if one.values else "Not"
            place["description"] += f" {which} in effect in this version: {one.instead}."
    return marked


def _mark_section(section: dict[str, Any], words: str) -> None:
    section["description"] += words
    for child in section["properties"].values():
        if "properties" in child:
            _mark_section(child, " Not in effect in this version.")
