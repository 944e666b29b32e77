"""Which children a service shall have, and what of those that are there differs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import (
    COMPONENT_ENGINE,
    COMPONENT_ROUTER,
    FILE_ENGINE,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    MANAGED_BY_VALUE,
)
from pagefleet_contract.service_settings import effective_routing
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.actions import Apply, Delete
from pagefleet_operator.drift import differs
from pagefleet_operator.fleet import Fleet
from pagefleet_operator.manifests.account import router_account, router_binding
from pagefleet_operator.manifests.config import router_config_map
from pagefleet_operator.manifests.deployments import router_deployment
from pagefleet_operator.manifests.metadata import Manifest, Owner
from pagefleet_operator.manifests.network import disruption_budget, front_door, network_policy, pod_monitor
from pagefleet_operator.manifests.router_pod import router_config, router_template
from pagefleet_operator.observed import Manifest as LiveManifest
from pagefleet_operator.observed import OptionalApis

Key = tuple[str, str]
Children = Mapping[Key, LiveManifest]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around the engine, whatever its generation."""

    owner: Owner
    spec: InferenceServiceSpec
    settings: OperatorSettings
    apis: OptionalApis
    fleet: Fleet
    live: Children


def has_router(spec: InferenceServiceSpec) -> bool:
    return effective_routing(spec) != "Service"


def surroundings(around: Surroundings) -> Iterator[Manifest]:
    """Yield every child beside the engine's Deployment and its ConfigMaps."""
    owner, spec, settings = around.owner, around.spec, around.settings
    yield front_door(owner, _behind_the_door(around))
    if has_router(spec):
        if settings.scope == "Cluster":
            yield router_account(owner)
            yield router_binding(owner)
        config = router_config_map(owner, router_config(owner, spec))
        yield config
        yield router_deployment(owner, router_template(owner, spec, settings, config), settings.router.replicas)
    yield disruption_budget(owner)
    # With routing Service every client reaches the engines themselves.
    if settings.network_policies == "Enabled" and has_router(spec):
        yield network_policy(owner)
    if settings.pod_monitors == "Enabled" and around.apis.pod_monitors:
        yield pod_monitor(owner)


def _behind_the_door(around: Surroundings) -> str:
    """Return whose pods stand behind the Service. Engines stay there until a router that is to come is ready."""
    if not has_router(around.spec):
        return COMPONENT_ENGINE
    live = around.live.get(("Service", around.owner.name))
    selector = ((live or {}).get("spec") or {}).get("selector") or {}
    stays = selector.get(LABEL_COMPONENT) == COMPONENT_ENGINE and not around.fleet.router_is_ready
    return COMPONENT_ENGINE if stays and around.fleet.ready else COMPONENT_ROUTER


def apply_if_needed(manifest: Manifest, live: Children) -> Apply | None:
    """Return the action that makes the child so, or None where it is."""
    there = live.get(key_of(manifest))
    if there is None:
        return Apply(manifest, f"the {manifest['kind']} {manifest['metadata']['name']} isn't there")
    difference = differs(manifest, there)
    return None if difference is None else Apply(manifest, difference)


def key_of(manifest: LiveManifest) -> Key:
    return manifest["kind"], manifest["metadata"]["name"]


def is_engine_settings(child: LiveManifest) -> bool:
    """Return whether a child is what some generation of pods starts with."""
    return child["kind"] == "ConfigMap" and FILE_ENGINE in (child.get("data") or {})


def deletions(live: Children, wanted: set[Key], *, all_pods_are_current: bool) -> Iterator[Delete]:
    """Yield the deletion of what is no longer wanted. A generation's settings go when no pod can need them."""
    for key in sorted(live):
        child = live[key]
        metadata = child["metadata"]
        if key in wanted or metadata.get("deletionTimestamp"):
            continue
        if (metadata.get("labels") or {}).get(LABEL_MANAGED_BY) != MANAGED_BY_VALUE:
            continue
        if is_engine_settings(child) and not all_pods_are_current:
            continue
        kind, name = key
        reason = f"the {kind} {name} is no longer needed"
        yield Delete(child["apiVersion"], kind, name, metadata["uid"], reason)
