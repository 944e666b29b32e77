"""One look at a service, and what follows: actions, status, events. Pure: the same world gives the same plan, and a
world that is as it shall be gives an empty one."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import ANNOTATION_TEMPLATE_HASH
from pagefleet_contract.policy import live_policy, live_policy_json
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.actions import Action, Announcement, Apply, Plan, SetPolicy
from pagefleet_operator.announcements import announcements
from pagefleet_operator.changes import changed_settings, settings_of
from pagefleet_operator.children import (
    Surroundings,
    apply_if_needed,
    deletions,
    has_router,
    key_of,
    surroundings,
)
from pagefleet_operator.conditions import REASON_COMPLETE, View
from pagefleet_operator.engine_children import Engine, EngineChildren, engine_children, live_engine, own_fleet
from pagefleet_operator.fit import Fit, judge_fit
from pagefleet_operator.fleet import Fleet, fleet_of
from pagefleet_operator.generation import Generation, generation_of
from pagefleet_operator.keys import service_key
from pagefleet_operator.manifests.metadata import Manifest, Owner
from pagefleet_operator.observed import Manifest as LiveManifest
from pagefleet_operator.observed import Observed
from pagefleet_operator.rollout import (
    Held,
    Roll,
    held_of,
    judge_roll,
    live_replicas,
    live_template_hash,
    takes_down_already,
)
from pagefleet_operator.scale_down import deletion_costs
from pagefleet_operator.status_plan import StatusPlan, plan_invalid_status, plan_status


@dataclass(frozen=True, slots=True)
class _Look:
    """What was derived from what was observed."""

    observed: Observed
    settings: OperatorSettings
    owner: Owner
    spec: InferenceServiceSpec
    generation: Generation
    deployment: LiveManifest | None
    fleet: Fleet
    fit: Fit
    roll: Roll


def plan(observed: Observed, settings: OperatorSettings, root_key: bytes, now: datetime | float) -> Plan:
    """Return what to do now."""
    moment = now if isinstance(now, datetime) else datetime.fromtimestamp(now, UTC)
    service = observed.service
    if service.deleting:  # the garbage collector does the rest
        return Plan()
    owner = Owner(service.name, service.namespace, service.uid)
    if service.spec is None:
        deployment = live_engine(owner, observed.children)
        fleet = fleet_of(observed.pods, None if deployment is None else live_template_hash(deployment))
        fleet = own_fleet(owner, fleet, observed.children)
        return _plan((), (), plan_invalid_status(observed, fleet, settings, moment))
    held = held_of(service.status, moment.timestamp())
    look = _look(observed, settings, owner, service.spec, service_key(root_key, service.uid), held)
    engine = engine_children(_engine(look), observed.children)
    wanted = [*engine.settings, *([engine.deployment] if engine.deployment else []), *surroundings(_around(look))]
    status = plan_status(observed, look.generation, _view(look), settings, moment)
    actions = tuple(_actions(look, engine, wanted))
    return _plan(actions, tuple(_turns(look, actions)), status, look.roll.again_in_seconds)


def _plan(
    actions: tuple[Action, ...], turns: tuple[Announcement, ...], status: StatusPlan, again: float | None = None
) -> Plan:
    told = () if status.document is None else tuple(announcements(status.verdicts, status.before))
    times = [seconds for seconds in (again, status.again_in_seconds) if seconds is not None]
    return Plan(actions, status.document, turns + told, min(times, default=None))


def _look(
    observed: Observed,
    settings: OperatorSettings,
    owner: Owner,
    spec: InferenceServiceSpec,
    operator_key: str,
    held: Held,
) -> _Look:
    deployment = live_engine(owner, observed.children)
    engines = fleet_of(observed.pods, None).engines
    generation = generation_of(owner, spec, settings, operator_key, deployment, engines)
    fleet = fleet_of(observed.pods, generation.template_hash)
    proven = any(pod.ready or (pod.figures is not None and pod.figures.num_blocks) for pod in fleet.current)
    fit = judge_fit(spec, generation.config, observed.model, proven=proven)
    roll = judge_roll(spec.rollout, generation.template_hash, deployment, fleet, held)
    return _Look(observed, settings, owner, spec, generation, deployment, fleet, fit, roll)


def _engine(look: _Look) -> Engine:
    weights_bytes = look.observed.model.weights_bytes
    return Engine(
        look.owner, look.spec, look.settings, look.generation, look.fit, look.roll, weights_bytes, look.deployment
    )


def _around(look: _Look) -> Surroundings:
    observed = look.observed
    return Surroundings(look.owner, look.spec, look.settings, observed.apis, look.fleet, observed.children)


def _view(look: _Look) -> View:
    return View(
        spec=look.spec,
        fit=look.fit,
        fleet=own_fleet(look.owner, look.fleet, look.observed.children),
        roll=look.roll,
        deployment=look.deployment,
        has_router=has_router(look.spec),
        was_complete=_was_complete(look),
    )


def _was_complete(look: _Look) -> bool:
    """Return whether this generation's roll had ended: a pod that fails later doesn't make it a roll again."""
    service = look.observed.service
    if look.fleet.older or look.deployment is None:
        return False
    if live_template_hash(look.deployment) != look.generation.template_hash:
        return False
    return any(
        condition.get("reason") == REASON_COMPLETE and condition.get("observedGeneration") == service.generation
        for condition in service.status.get("conditions") or ()
    )


def _actions(look: _Look, engine: EngineChildren, wanted: list[Manifest]) -> Iterator[Action]:
    live = look.observed.children
    if engine.deployment is not None and look.deployment is not None:
        replicas = engine.deployment["spec"]["replicas"]
        yield from deletion_costs(look.fleet.engines, live_replicas(look.deployment), replicas)
    for manifest in wanted:
        action = apply_if_needed(manifest, live)
        if action is not None:
            yield action
    yield from _policies(look)
    keys = {key_of(manifest) for manifest in wanted} | engine.kept
    yield from deletions(live, keys, all_pods_are_current=_all_pods_are_current(look))


def _all_pods_are_current(look: _Look) -> bool:
    """Return whether no pod, nor one that the Deployment may still make, is of another generation."""
    if look.fit.status == "False" or look.deployment is None:
        return not any((look.fleet.engines, look.fleet.leaving, look.deployment))
    return look.roll.is_over


def _policies(look: _Look) -> Iterator[SetPolicy]:
    wanted, body = live_policy(look.generation.config), live_policy_json(look.generation.config)
    for pod in look.fleet.current_ready:
        if pod.figures is None or pod.ip is None:
            continue
        in_force = pod.figures.policy
        different = [
            f"{name} is {in_force.get(name)}, not {value}"
            for name, value in wanted.items()
            if in_force.get(name) != value
        ]
        if different:
            yield SetPolicy(pod.name, pod.ip, body, f"{pod.name}: {', '.join(different)}")


def _turns(look: _Look, actions: tuple[Action, ...]) -> Iterator[Announcement]:
    """Yield the events that belong to what is done now."""
    if look.deployment is None:
        return
    for action in actions:
        if not isinstance(action, Apply) or key_of(action.manifest) != key_of(look.deployment):
            continue
        new = action.manifest["spec"]["template"]["metadata"]["annotations"].get(ANNOTATION_TEMPLATE_HASH)
        if new != live_template_hash(look.deployment):
            old = settings_of(look.deployment, look.observed.children)
            changes = changed_settings(old, look.generation.config_map)
            yield Announcement("Normal", "RollingOut", f"the replicas are replaced: {changes or action.reason}")
        if look.roll.takes_down_first and not takes_down_already(look.deployment):
            yield Announcement("Normal", "TakingDownFirst", look.roll.holding)
