"""How far a roll is, how the Deployment shall replace pods, and what holds it.

Where the pod that a roll adds finds no accelerator, waiting would last for ever: the ones in use are freed only by the
pods that wait for their successor. So one replica goes first, for as long as the roll lasts.
"""

from dataclasses import dataclass
from datetime import datetime

from pagefleet_contract.inferenceservice import Rollout
from pagefleet_contract.names import ANNOTATION_TEMPLATE_HASH
from pagefleet_operator.fleet import Fleet, first_trouble
from pagefleet_operator.manifests.deployments import Strategy
from pagefleet_operator.observed import Manifest
from pagefleet_operator.scarcity import PATIENCE_SECONDS, Scarcity, scarcity_of

# A slow disk or a busy link; what a deadline is reckoned with before anything was measured.
_LOAD_BYTES_PER_SECOND = 100 * 10**6
_TAKES_DOWN = ": one is taken down first, then its successor starts"


@dataclass(frozen=True, slots=True)
class Held:
    """What the status said that the roll waits for, and for how long now."""

    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Roll:
    """`is_over`: every pod is of this generation and ready, and those of older ones have ended. `holding` says what the
    roll waits for, empty where it waits for nothing. `again_in_seconds`: when waiting has lasted long enough; None
    where only an event counts."""

    is_over: bool
    strategy: Strategy
    holding: str
    takes_down_first: bool
    again_in_seconds: float | None = None


def held_of(status: Manifest, now_seconds: float) -> Held:
    rollout = status.get("rollout") or {}
    since = rollout.get("since")
    return Held(
        rollout.get("holding") or "", 0.0 if not since else now_seconds - datetime.fromisoformat(since).timestamp()
    )


def judge_roll(rollout: Rollout, template_hash: str, deployment: Manifest | None, fleet: Fleet, held: Held) -> Roll:
    """Return how the roll to this template goes on. `deployment` is the live one."""
    asked = Strategy(rollout.max_surge, rollout.max_unavailable)
    if deployment is None:
        return Roll(is_over=False, strategy=asked, holding="", takes_down_first=False)
    if _is_over(deployment, template_hash, fleet):
        return Roll(is_over=True, strategy=asked, holding="", takes_down_first=False)
    # Before the template is applied, a pod that waits is of an older roll.
    scarcity = scarcity_of(fleet) if live_template_hash(deployment) == template_hash else None
    # A Deployment without surge alone may be what an earlier spec asked for.
    if asked.max_unavailable == 0 and takes_down_already(deployment) and held.text.endswith(_TAKES_DOWN):
        return _taking_down(scarcity, held)
    if scarcity is None:
        return Roll(is_over=False, strategy=asked, holding=_holding(fleet), takes_down_first=False)
    if asked.max_unavailable > 0 or scarcity.leaving is not None or not scarcity.one_is_enough:
        return Roll(is_over=False, strategy=asked, holding=scarcity.words, takes_down_first=False)
    waited = held.seconds if held.text == scarcity.words else 0.0
    if waited >= PATIENCE_SECONDS:
        return _taking_down(scarcity, held)
    return Roll(False, asked, scarcity.words, takes_down_first=False, again_in_seconds=PATIENCE_SECONDS - waited)


def _taking_down(scarcity: Scarcity | None, held: Held) -> Roll:
    """One replica goes before its successor comes, until the roll is over. What was said about it stays."""
    why = scarcity.words if scarcity is not None and scarcity.one_is_enough else "there was no room for a replica more"
    holding = held.text if held.text.endswith(_TAKES_DOWN) else why + _TAKES_DOWN
    return Roll(is_over=False, strategy=Strategy(0, 1), holding=holding, takes_down_first=True)


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
        and not fleet.older_leaving
        and len(fleet.current) == len(fleet.current_ready) == live_replicas(deployment)
    )


def takes_down_already(deployment: Manifest) -> bool:
    """Return whether the live Deployment replaces pods without one more."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return rolling.get("maxSurge") == 0


def _holding(fleet: Fleet) -> str:
    """Return what a roll waits for that has the room it needs."""
    if not fleet.older and not fleet.older_leaving:
        return ""
    trouble = first_trouble(fleet.current)
    if trouble is not None:
        return f"{trouble.message} ({trouble.reason})"
    loading = next((pod for pod in fleet.current if not pod.ready), None)
    if loading is not None:
        return f"{loading.name} loads the model"
    return f"{fleet.older_leaving[0].name} finishes its requests" if fleet.older_leaving else ""


def progress_deadline_seconds(
    rollout: Rollout, start_timeout_seconds: int | None, weights_bytes: int | None, least: int
) -> int:
    """Return how long a roll may make no progress: a replica may drain, and then its successor load."""
    load_seconds = 2 * (weights_bytes or 0) // _LOAD_BYTES_PER_SECOND
    return max(least, load_seconds, start_timeout_seconds or 0) + rollout.drain_timeout_seconds
