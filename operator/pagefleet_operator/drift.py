"""Whether a live child still is what we apply: the first difference in words.

What we want must be contained in what is there. The API server adds defaults and spells quantities its own way, and
other managers may add entries to lists that Kubernetes merges by key: none of that is a difference, because applying
again would not change it. Taking something out of a pod template is seen by the template's hash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.quantities import same_quantity

# Lists that server-side apply merges, by the fields that tell their entries apart. All others are replaced as a whole.
_MERGED_BY: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
# Ports have no common key: those of containers and those of Services differ.
_PORT_KEYS = ("containerPort", "port")
# Mappings that server-side apply replaces as a whole: an entry more makes them mean something else.
_REPLACED_MAPPINGS = ("selector", "podSelector", "namespaceSelector", "matchLabels", "nodeSelector")
_QUANTITIES_UNDER = ("requests", "limits")
_QUANTITIES = ("sizeLimit", "divisor")
# False stored for these is something else than nothing; for others the API server drops what says nothing.
_FALSE_IS_STORED = ("automountServiceAccountToken", "allowPrivilegeEscalation")


def differs(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Return the first difference between what is applied and what is there, or None where there is none."""
    found = _mapping_difference(desired, live, around="", replaced=False)
    return None if found is None else f"{found.path.removeprefix('.')} {found.words}"


@dataclass(frozen=True, slots=True)
class _Found:
    """A difference; its path grows on the way out, so that equal objects cost no words."""

    path: str
    words: str

    def within(self, step: str) -> "_Found":
        return _Found(step + self.path, self.words)


def _mapping_difference(
    desired: Mapping[str, Any], live: Mapping[str, Any], *, around: str, replaced: bool
) -> _Found | None:
    """`around` is the key under which the mapping stands; `replaced`: it is part of a list that is replaced whole."""
    for key in sorted(desired, key=_telling_first):
        found = _difference(key, desired[key], live.get(key), around=around, replaced=replaced)
        if found is not None:
            # Keys of labels, annotations and the like hold dots themselves.
            return found.within(f"[{key}]" if "." in key or "/" in key else f".{key}")
    return None


def _telling_first(key: str) -> tuple[bool, str]:
    """What is inside says more to people than a changed hash in the metadata."""
    return key == "metadata", key


def _difference(key: str, desired: Any, live: Any, *, around: str, replaced: bool) -> _Found | None:
    if desired == live:
        return None
    if isinstance(desired, Mapping):
        if live is None or isinstance(live, Mapping):
            if key in _REPLACED_MAPPINGS and not (live or {}).keys() <= desired.keys():
                return _not_the_same(dict(desired), live)
            return _mapping_difference(desired, live or {}, around=key, replaced=replaced)
        return _not_the_same(desired, live)
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return _list_difference(key, desired, live or (), around=around, replaced=replaced)
    return None if _same_scalar(key, desired, live, around) else _not_the_same(desired, live)


def _list_difference(key: str, desired: Sequence[Any], live: Any, *, around: str, replaced: bool) -> _Found | None:
    if isinstance(live, str) or not isinstance(live, Sequence):
        return _not_the_same(desired, live)
    names = None if replaced else _merge_keys(key, desired)
    if names is not None:
        return _merged_difference(names, desired, live, around)
    if len(desired) != len(live):
        return _Found("", f"has {_entries(len(live))}, not {len(desired)}")
    for index, (wanted, found) in enumerate(zip(desired, live, strict=True)):
        difference = _difference(key, wanted, found, around=around, replaced=True)
        if difference is not None:
            return difference.within(f"[{index}]")
    return None


def _merge_keys(key: str, desired: Sequence[Any]) -> tuple[str, ...] | None:
    if key == "ports":
        found = next((name for name in _PORT_KEYS if desired and name in desired[0]), None)
        return None if found is None else (found,)
    return _MERGED_BY.get(key)


def _merged_difference(
    names: tuple[str, ...], desired: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]], around: str
) -> _Found | None:
    there = {tuple(entry.get(name) for name in names): entry for entry in live}
    for wanted in desired:
        key = tuple(wanted.get(name) for name in names)
        step = f"[{','.join(map(str, key))}]"
        if key not in there:
            return _Found(step, "is missing")
        difference = _mapping_difference(wanted, there[key], around=around, replaced=False)
        if difference is not None:
            return difference.within(step)
    return None


def _same_scalar(key: str, desired: Any, live: Any, around: str) -> bool:
    if live is None:
        return not desired and key not in _FALSE_IS_STORED
    if isinstance(live, (Mapping, list, tuple)):
        return False
    return (around in _QUANTITIES_UNDER or key in _QUANTITIES) and same_quantity(desired, live)


def _not_the_same(desired: Any, live: Any) -> _Found:
    found = "is missing" if live is None else f"is {_short(live)}"
    return _Found("", f"{found}, not {_short(desired)}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
