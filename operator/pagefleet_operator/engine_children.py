"""What becomes of the engine's Deployment and settings: of this generation, or none, or the older one that serves."""

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import ANNOTATION_IMAGE, ANNOTATION_SPEC_HASH
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.children import Children, Key, key_of
from pagefleet_operator.fit import Fit
from pagefleet_operator.fleet import Fleet
from pagefleet_operator.generation import Generation
from pagefleet_operator.manifests.deployments import EngineDeployment, engine_deployment, engine_name, router_name
from pagefleet_operator.manifests.metadata import Manifest, Owner, without_absent
from pagefleet_operator.observed import Manifest as LiveManifest
from pagefleet_operator.rollout import Roll, live_replicas, live_template_hash, progress_deadline_seconds


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine's children are decided from."""

    owner: Owner
    spec: InferenceServiceSpec
    settings: OperatorSettings
    generation: Generation
    fit: Fit
    roll: Roll
    weights_bytes: int | None
    deployment: LiveManifest | None


@dataclass(frozen=True, slots=True)
class EngineChildren:
    """`settings` come before the pods that read them. `kept` may stay as they are."""

    settings: tuple[Manifest, ...]
    deployment: Manifest | None
    kept: frozenset[Key]


def engine_children(engine: Engine, live: Children) -> EngineChildren:
    """Return the children. A spec that doesn't fit gets no pods; pods of an older one that are there go on."""
    generation = engine.generation
    settings = (generation.config_map, generation.live_config_map)
    if engine.fit.status != "False":
        return EngineChildren(settings, _deployment(engine, engine.spec.replicas), frozenset())
    if engine.deployment is None:
        return EngineChildren((), None, frozenset())
    if live_template_hash(engine.deployment) == generation.template_hash:
        return EngineChildren(settings, _deployment(engine, 0), frozenset())
    kept = frozenset({key_of(generation.live_config_map)}) & live.keys()
    replicas = engine.spec.replicas if live_replicas(engine.deployment) else 0
    return EngineChildren((), _kept_deployment(engine, engine.deployment, replicas), kept)


def live_engine(owner: Owner, live: Children) -> LiveManifest | None:
    return live.get(("Deployment", engine_name(owner)))


def own_fleet(owner: Owner, fleet: Fleet, live: Children) -> Fleet:
    """Return the fleet without pods of Deployments that somebody else has: they bear the service's labels, and what
    they do isn't its merit."""
    has_engine, has_router = (("Deployment", name) in live for name in (engine_name(owner), router_name(owner)))
    return fleet.of(engine=has_engine, router=has_router)


def _deployment(engine: Engine, replicas: int) -> Manifest:
    generation = engine.generation
    return engine_deployment(
        EngineDeployment(
            owner=engine.owner,
            template=generation.template,
            replicas=replicas,
            strategy=engine.roll.strategy,
            progress_deadline_seconds=_deadline_seconds(engine),
            spec_hash=generation.spec_hash,
            image=generation.image,
        )
    )


def _deadline_seconds(engine: Engine) -> int:
    seconds = progress_deadline_seconds(
        engine.spec.rollout,
        engine.spec.serving.start_timeout_seconds,
        engine.weights_bytes,
        engine.settings.progress_deadline_seconds,
    )
    if engine.weights_bytes is not None or engine.deployment is None:
        return seconds
    # An operator that has just started doesn't know the model yet; that is no reason to go back and forth.
    return max(seconds, int(engine.deployment["spec"].get("progressDeadlineSeconds", 0)))


def _kept_deployment(engine: Engine, deployment: LiveManifest, replicas: int) -> Manifest:
    """Return the Deployment as it is, with another number of replicas."""
    annotations: Mapping[str, str] = deployment["metadata"].get("annotations") or {}
    spec = deployment["spec"]
    kept = engine_deployment(
        EngineDeployment(
            owner=engine.owner,
            template=without_absent(spec["template"]),
            replicas=replicas,
            strategy=engine.roll.strategy,
            progress_deadline_seconds=spec["progressDeadlineSeconds"],
            spec_hash=annotations.get(ANNOTATION_SPEC_HASH, ""),
            image=annotations.get(ANNOTATION_IMAGE, ""),
        )
    )
    return {**kept, "spec": {**kept["spec"], "strategy": spec["strategy"]}}
