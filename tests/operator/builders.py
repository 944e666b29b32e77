"""Values as planning takes them. A test names only what it is about."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pagefleet_contract.capacity import ModelShape
from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import COMPONENT_ENGINE, COMPONENT_ROUTER
from pagefleet_contract.policy import live_policy
from pagefleet_contract.service_settings import service_settings
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.actions import Action, Apply, Delete, Plan
from pagefleet_operator.observed import Figures, Manifest, ModelFacts, Observed, OptionalApis, Pod, Service, Trouble
from pagefleet_operator.plan import plan

NAME, NAMESPACE, UID = "chat", "prod", "11111111-2222-3333-4444-555555555555"
ROOT_KEY = b"the operator's root key"
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

SIMULATED: Mapping[str, Any] = {"model": {"uri": "simulated://llama-3.1-8b"}, "accelerator": {"resource": "cpu"}}
REAL: Mapping[str, Any] = {"model": {"uri": "hf://acme/llama"}, "accelerator": {"memory": "80Gi"}}

LLAMA_8B = ModelFacts(ModelShape.uniform(32, 8, 128), 16_060_522_496, 131_072, "a test", dtype="bfloat16")
LLAMA_70B = ModelFacts(ModelShape.uniform(80, 8, 128), 141_107_412_992, 131_072, "a test", dtype="bfloat16")


def spec(base: Mapping[str, Any] = SIMULATED, **fields: Any) -> InferenceServiceSpec:
    """Return a spec; `fields` are laid over the base, camelCase as in a manifest."""
    return InferenceServiceSpec.model_validate({**base, **fields})


def service(wanted: InferenceServiceSpec | None = None, **fields: Any) -> Service:
    given = {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 1, "deleting": False}
    return Service(**{**given, "spec": wanted or spec(), **fields})


def observed(
    wanted: InferenceServiceSpec | None = None,
    children: Mapping[tuple[str, str], Manifest] | None = None,
    pods: tuple[Pod, ...] = (),
    model: ModelFacts | None = None,
    apis: OptionalApis | None = None,
    **fields: Any,
) -> Observed:
    """Return a world; `fields` are the resource's."""
    return Observed(service(wanted, **fields), children or {}, pods, model or ModelFacts(), apis or OptionalApis())


def settings(**fields: Any) -> OperatorSettings:
    return OperatorSettings.model_validate(fields)


def planned(world: Observed, chosen: OperatorSettings | None = None, now: datetime = NOW) -> Plan:
    return plan(world, chosen or settings(), ROOT_KEY, now)


def figures(**fields: Any) -> Figures:
    given: dict[str, Any] = {
        "state": "ready",
        "in_flight": 0,
        "load_stage": None,
        "load_fraction": None,
        "block_size": 16,
        "num_blocks": 1000,
        "bytes_per_block": 2_097_152,
        "max_length_tokens": 8000,
        "dtype": "bfloat16",
        "quantization": None,
        "kv_dtype": "bfloat16",
        "live_blocks": 0,
        "notes": (),
        "policy": {},
    }
    return Figures(**{**given, **fields})


def loading(stage: str, fraction: float | None) -> Figures:
    unknown = dict.fromkeys(("block_size", "num_blocks", "bytes_per_block", "max_length_tokens", "live_blocks"))
    return figures(state="loading", load_stage=stage, load_fraction=fraction, dtype=None, kv_dtype=None, **unknown)


def pod(name: str = "chat-engine-a", **fields: Any) -> Pod:
    """Return an engine pod that is ready."""
    given: dict[str, Any] = {
        "name": name,
        "uid": f"uid-of-{name}",
        "component": COMPONENT_ENGINE,
        "ip": "10.0.0.1",
        "template_hash": None,
        "created_seconds": 1000.0,
        "scheduled": True,
        "ready": True,
        "deleting": False,
        "restarts": 0,
        "trouble": None,
        "deletion_cost": None,
    }
    return Pod(**{**given, **fields})


def router(**fields: Any) -> Pod:
    return pod("chat-router-a", component=COMPONENT_ROUTER, **fields)


def troubled(reason: str, message: str, name: str = "chat-engine-a", **fields: Any) -> Pod:
    return pod(name, ready=False, trouble=Trouble(reason, message), **fields)


def applied(found: Plan) -> dict[tuple[str, str], Manifest]:
    """Return what a plan applies, by kind and name."""
    manifests = [action.manifest for action in found.actions if isinstance(action, Apply)]
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def deleted(found: Plan) -> set[tuple[str, str]]:
    return {(action.kind, action.name) for action in found.actions if isinstance(action, Delete)}


def of_kind(found: Plan, kind: type[Action]) -> list[Any]:
    return [action for action in found.actions if isinstance(action, kind)]


def engine(children: Mapping[tuple[str, str], Manifest]) -> Manifest:
    return children["Deployment", "chat-engine"]


def template_hash(children: Mapping[tuple[str, str], Manifest]) -> str:
    annotations = engine(children)["spec"]["template"]["metadata"]["annotations"]
    return str(annotations["pagefleet.dev/template-hash"])


def image_of(children: Mapping[tuple[str, str], Manifest]) -> str:
    return str(engine(children)["spec"]["template"]["spec"]["containers"][0]["image"])


def live(manifest: Manifest, **status: Any) -> Manifest:
    """Return a manifest as the API server would keep it, seen by its controller, made long ago."""
    metadata = {"uid": f"uid-of-{manifest['metadata']['name']}", "generation": 1, **manifest["metadata"]}
    metadata.setdefault("creationTimestamp", "2026-11-29T10:00:00Z")
    return {**manifest, "metadata": metadata, "status": {"observedGeneration": metadata["generation"], **status}}


def all_live(children: Mapping[tuple[str, str], Manifest]) -> dict[tuple[str, str], Manifest]:
    return {key: live(manifest) for key, manifest in children.items()}


def serving(
    wanted: InferenceServiceSpec | None = None, chosen: OperatorSettings | None = None, model: ModelFacts | None = None
) -> Observed:
    """Return a service whose children and pods are as they shall be, and whose status says so."""
    wanted = wanted or spec()
    children = all_live(applied(planned(observed(wanted, model=model), chosen)))
    hashed = template_hash(children)
    names = [f"chat-engine-{index}" for index in range(wanted.replicas)]
    pods = (*(pod(name, template_hash=hashed, figures=figures(policy=_policy(wanted))) for name in names), router())
    return with_status(observed(wanted, children, pods, model), chosen)


def with_pods(*pods: Pod, replicas: int = 1, **fields: Any) -> Observed:
    """Return a service whose children are there, made long ago, with these pods; those without a hash are current."""
    wanted = spec(replicas=replicas, **fields)
    children = all_live(applied(planned(observed(wanted))))
    hashed = template_hash(children)
    current = tuple(
        one if one.template_hash or one.component == "router" else replace(one, template_hash=hashed) for one in pods
    )
    return observed(wanted, children, current)


def with_status(world: Observed, chosen: OperatorSettings | None = None, now: datetime = NOW) -> Observed:
    """Return the world after its status was written."""
    status = planned(world, chosen, now).status
    if status is None:
        return world
    return replace(
        world,
        service=replace(world.service, status=status),
        status_written_seconds=now.timestamp(),
    )


def edited(world: Observed, **fields: Any) -> Observed:
    """Return the world after the user changed fields of the spec."""
    assert world.service.spec is not None
    document = world.service.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    wanted = InferenceServiceSpec.model_validate({**document, **fields})
    return replace(world, service=replace(world.service, spec=wanted, generation=world.service.generation + 1))


def after(world: Observed, done: Plan) -> Observed:
    """Return the world after a plan's children were applied and deleted; pods are as before."""
    gone = deleted(done)
    children = {key: child for key, child in world.children.items() if key not in gone}
    for key, manifest in applied(done).items():
        children[key] = live(manifest)
    service_ = world.service if done.status is None else replace(world.service, status=done.status)
    return replace(world, children=children, service=service_)


def condition(found: Plan, kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition in the status that a plan writes."""
    assert found.status is not None, "the plan writes no status"
    (one,) = [entry for entry in found.status["conditions"] if entry["type"] == kind]
    return one["status"], one["reason"], one["message"]


def _policy(wanted: InferenceServiceSpec) -> dict[str, int]:
    return live_policy(service_settings(NAME, wanted).config)
