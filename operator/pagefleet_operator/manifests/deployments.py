"""Deployments of engine and router."""

from dataclasses import dataclass

from pagefleet_contract.names import (
    ANNOTATION_IMAGE,
    ANNOTATION_SPEC_HASH,
    COMPONENT_ENGINE,
    COMPONENT_ROUTER,
    service_selector,
)
from pagefleet_operator.manifests.metadata import Manifest, Owner, child

_REVISIONS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a roll replaces pods."""

    max_surge: int
    max_unavailable: int


@dataclass(frozen=True, slots=True)
class EngineDeployment:
    """What the engine's Deployment is made of. Hash and image are remembered for the next look."""

    owner: Owner
    template: Manifest
    replicas: int
    strategy: Strategy
    progress_deadline_seconds: int
    spec_hash: str
    image: str


def engine_deployment(engine: EngineDeployment) -> Manifest:
    remembered = {ANNOTATION_SPEC_HASH: engine.spec_hash, ANNOTATION_IMAGE: engine.image}
    owner = engine.owner
    head = child(owner, "apps/v1", "Deployment", engine_name(owner), COMPONENT_ENGINE, remembered)
    return {
        **head,
        "spec": {
            "replicas": engine.replicas,
            "selector": {"matchLabels": service_selector(owner.name, COMPONENT_ENGINE)},
            "strategy": _rolling(engine.strategy),
            # Set by hand, these would hold every roll.
            "minReadySeconds": 0,
            "paused": False,
            "progressDeadlineSeconds": engine.progress_deadline_seconds,
            "revisionHistoryLimit": _REVISIONS_KEPT,
            "template": engine.template,
        },
    }


def router_deployment(owner: Owner, template: Manifest, replicas: int) -> Manifest:
    return {
        **child(owner, "apps/v1", "Deployment", router_name(owner), COMPONENT_ROUTER),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": service_selector(owner.name, COMPONENT_ROUTER)},
            "strategy": _rolling(Strategy(max_surge=1, max_unavailable=0)),
            "minReadySeconds": 0,
            "paused": False,
            "revisionHistoryLimit": _REVISIONS_KEPT,
            "template": template,
        },
    }


def engine_name(owner: Owner) -> str:
    return owner.child("engine")


def router_name(owner: Owner) -> str:
    return owner.child("router")


def _rolling(strategy: Strategy) -> Manifest:
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": strategy.max_surge, "maxUnavailable": strategy.max_unavailable},
    }
