"""A roll's new pod that no node has room for, and whether taking an older one down would make room."""

import re
from dataclasses import dataclass

from pagefleet_operator.fleet import Fleet
from pagefleet_operator.observed import Pod
from pagefleet_operator.quantities import quantity_value

# Longer than the scheduler takes to try again when room has come; what it said before that may be out of date.
PATIENCE_SECONDS = 10.0

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./_-]*[A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Scarcity:
    """`pod` waits for `resources`. `leaving` frees some soon; `one_is_enough`: so would an older one."""

    pod: Pod
    resources: tuple[str, ...]
    leaving: Pod | None
    one_is_enough: bool

    @property
    def words(self) -> str:
        missing = " and ".join(self.resources)
        if self.leaving is not None:
            return f"{self.pod.name} waits for {missing}, which {self.leaving.name} frees when it has ended"
        if self.one_is_enough:
            return f"no {missing} is free for a replica more"
        return (
            f"{self.pod.name} waits for {missing}: it asks for more than a replica that goes would free;"
            " add nodes, ask for less, or set rollout.maxSurge to 0"
        )


def scarcity_of(fleet: Fleet) -> Scarcity | None:
    """Return what the first pod of this generation lacks, or None where none lacks room."""
    for pod in fleet.current:
        if pod.scheduled or pod.trouble is None:
            continue
        missing = tuple(dict.fromkeys(_INSUFFICIENT.findall(pod.trouble.message)))
        if missing and (fleet.older or fleet.leaving):
            leaving = fleet.leaving[0] if fleet.leaving else None
            return Scarcity(pod, missing, leaving, _one_is_enough(pod, missing, fleet.older))
    return None


def _one_is_enough(new: Pod, missing: tuple[str, ...], older: tuple[Pod, ...]) -> bool:
    holders = [pod for pod in older if pod.scheduled]
    return any(all(_frees(pod, new, resource) for resource in missing) for pod in holders)


def _frees(old: Pod, new: Pod, resource: str) -> bool:
    """Return whether the old pod holds as much of the resource as the new one asks for; where it isn't known, yes."""
    if not old.requests or not new.requests:
        return True
    held, asked = (quantity_value(pod.requests.get(resource, "0")) for pod in (old, new))
    return held is not None and asked is not None and held >= asked
