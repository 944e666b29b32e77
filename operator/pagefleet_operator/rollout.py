"""How far a roll is, how the Deployment shall replace pods, and what holds it.

Where the pod that a roll adds finds no accelerator, waiting would last for ever: the ones in use are freed only by the
pods that wait for their successor. So one replica goes first, for as long as the roll lasts.
"""

import re
from dataclasses import dataclass

from pagefleet_contract.inferenceservice import Rollout
from pagefleet_contract.names import ANNOTATION_TEMPLATE_HASH
from pagefleet_operator.fleet import Fleet, first_trouble
from pagefleet_operator.manifests.deployments import Strategy
from pagefleet_operator.observed import Manifest, Pod
from pagefleet_operator.quantities import quantity_value

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./_-]*[A-Za-z0-9])")


# A slow disk or a busy link; what a deadline is reckoned with before anything was measured.
_LOAD_BYTES_PER_SECOND = 100 * 10**6


@dataclass(frozen=True, slots=True)
class Roll:
    """`holding` says what the roll waits for, empty where it waits for nothing. `is_over`: every pod is of this
    generation and ready."""

    is_over: bool
    strategy: Strategy
    holding: str
    takes_down_first: bool


def judge_roll(rollout: Rollout, template_hash: str, deployment: Manifest | None, fleet: Fleet) -> Roll:
    """Return how the roll to this template goes on. `deployment` is the live one."""
    asked = Strategy(rollout.max_surge, rollout.max_unavailable)
    if deployment is None:
        return Roll(is_over=False, strategy=asked, holding="", takes_down_first=False)
    is_over = _is_over(deployment, template_hash, fleet)
    scarce = _scarce(fleet)
    takes_down = asked.max_unavailable == 0 and (
        (not is_over and takes_down_already(deployment))
        or (live_template_hash(deployment) == template_hash and _one_that_goes_is_enough(scarce, fleet))
    )
    strategy = Strategy(0, 1) if takes_down else asked
    holding = "" if is_over else _holding(scarce, fleet, takes_down)
    return Roll(is_over, strategy, holding, takes_down)


def live_template_hash(deployment: Manifest) -> str | None:
    metadata = deployment["spec"]["template"].get("metadata") or {}
    found: str | None = (metadata.get("annotations") or {}).get(ANNOTATION_TEMPLATE_HASH)
    return found


def live_replicas(deployment: Manifest) -> int:
    return int(deployment["spec"].get("replicas", 1))


def _is_over(deployment: Manifest, template_hash: str, fleet: Fleet) -> bool:
    """Return whether the pods that shall be there are, of this template and ready, and no others.

    Judged on the pods: the Deployment's own counts come later, and each change of mind is a write of the status.
    """
    seen = (deployment.get("status") or {}).get("observedGeneration", 0)
    return (
        live_template_hash(deployment) == template_hash
        and seen >= deployment["metadata"].get("generation", 0)
        and not fleet.older
        and len(fleet.current) == len(fleet.current_ready) == live_replicas(deployment)
    )


def takes_down_already(deployment: Manifest) -> bool:
    """Return whether the live Deployment replaces pods without one more."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return rolling.get("maxSurge") == 0


@dataclass(frozen=True, slots=True)
class _Scarce:
    """A pod of this generation that no node has room for, and what is missing."""

    pod: Pod
    resources: tuple[str, ...]


def _scarce(fleet: Fleet) -> _Scarce | None:
    for pod in fleet.current:
        if pod.scheduled or pod.trouble is None:
            continue
        missing = tuple(dict.fromkeys(_INSUFFICIENT.findall(pod.trouble.message)))
        if missing:
            return _Scarce(pod, missing)
    return None


def _one_that_goes_is_enough(scarce: _Scarce | None, fleet: Fleet) -> bool:
    """Return whether taking an older pod down makes room. Those that leave already may do so: they are waited for."""
    if scarce is None or fleet.leaving:
        return False
    holders = [pod for pod in fleet.older if pod.scheduled]
    return any(all(_frees(pod, scarce.pod, resource) for resource in scarce.resources) for pod in holders)


def _frees(old: Pod, new: Pod, resource: str) -> bool:
    """Return whether the old pod holds as much of the resource as the new one asks for; where it isn't known, yes."""
    if not old.requests or not new.requests:
        return True
    held, asked = (quantity_value(pod.requests.get(resource, "0")) for pod in (old, new))
    return held is not None and asked is not None and held >= asked


def _holding(scarce: _Scarce | None, fleet: Fleet, takes_down: bool) -> str:
    if takes_down:
        missing = f"no {' and '.join(scarce.resources)} is free" if scarce else "nothing was free"
        return f"{missing} for a replica more: one is taken down first, then its successor starts"
    if scarce is not None and (fleet.older or fleet.leaving):
        return _held_by_scarcity(scarce, fleet)
    if not fleet.older and not fleet.leaving:
        return ""
    trouble = first_trouble(fleet.current)
    if trouble is not None:
        return f"{trouble.message} ({trouble.reason})"
    loading = next((pod for pod in fleet.current if not pod.ready), None)
    if loading is not None:
        return f"{loading.name} loads the model"
    return f"{fleet.leaving[0].name} finishes its requests" if fleet.leaving else ""


def _held_by_scarcity(scarce: _Scarce, fleet: Fleet) -> str:
    missing = " and ".join(scarce.resources)
    if fleet.leaving:
        return f"{scarce.pod.name} waits for {missing}, which {fleet.leaving[0].name} frees when it has ended"
    return (
        f"{scarce.pod.name} waits for {missing}: it asks for more than a replica that goes would free;"
        " add nodes, ask for less, or set rollout.maxSurge to 0"
    )


def progress_deadline_seconds(
    rollout: Rollout, start_timeout_seconds: int | None, weights_bytes: int | None, least: int
) -> int:
    """Return how long a roll may make no progress: a replica may drain, and then its successor load."""
    load_seconds = 2 * (weights_bytes or 0) // _LOAD_BYTES_PER_SECOND
    return max(least, load_seconds, start_timeout_seconds or 0) + rollout.drain_timeout_seconds
