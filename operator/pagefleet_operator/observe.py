"""Builds the one frozen value that planning looks at: from the cache, the figures, the model's facts and, for a pod
that waits, its events."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.cache import Cache, ServiceKey
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.events import PodEvents
from pagefleet_operator.faults import AbsentFault
from pagefleet_operator.figures import FiguresBook
from pagefleet_operator.kinds import POD_MONITOR
from pagefleet_operator.model_facts import ModelFactsBook, Pending
from pagefleet_operator.observed import Manifest, ModelFacts, Observed, OptionalApis, Pod, Service
from pagefleet_operator.pods import pod_from_manifest

# A pod may be this long on its way before anybody asks why.
_PATIENCE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Observer:
    """Where the parts come from."""

    api: ClusterApi
    cache: Cache
    figures: FiguresBook
    models: ModelFactsBook
    pod_events: PodEvents
    apis: Callable[[], OptionalApis]
    settings: OperatorSettings

    async def observe(self, key: ServiceKey) -> Observed | Pending | None:
        """Return what there is; None where the service is gone; Pending where its model is still being looked up.
        Raises a Fault."""
        resource = self.cache.service(key)
        if resource is None:
            return None
        service = service_of(resource)
        facts = ModelFacts() if service.spec is None else self.models.facts(service.spec.model, key)
        children: dict[tuple[str, str], Manifest] = {**self.cache.children(key)}
        if isinstance(facts, Pending):
            # The first pods wait until it's known whether they fit; what runs is looked after meanwhile.
            if not any(kind == "Deployment" for kind, _ in children):
                return facts
            facts = ModelFacts(fault="the model's size is being looked up")
        apis = self.apis()
        if apis.pod_monitors:
            children |= await self._pod_monitors(key)
        return Observed(service, children, await self._pods(key), facts, apis)

    async def _pods(self, key: ServiceKey) -> tuple[Pod, ...]:
        return tuple([await self._pod(key.namespace, manifest) for manifest in self.cache.pods(key)])

    async def _pod(self, namespace: str, manifest: Manifest) -> Pod:
        uid = manifest["metadata"]["uid"]
        events = await self.pod_events.of(namespace, uid) if waits(manifest, time.time()) else ()
        reading = self.figures.reading(uid)
        return replace(pod_from_manifest(manifest, events), figures=reading.figures, figures_fault=reading.fault)

    async def _pod_monitors(self, key: ServiceKey) -> dict[tuple[str, str], Manifest]:
        """The kind isn't watched, as most clusters lack it: the one that a service may have is read."""
        if self.settings.pod_monitors == "Disabled":
            return {}
        try:
            found = await self.api.get(POD_MONITOR.path(key.namespace, key.name))
        except AbsentFault:
            return {}
        return {(POD_MONITOR.kind, key.name): found}


def service_of(resource: Mapping[str, Any]) -> Service:
    metadata = resource["metadata"]
    spec, refusal = parse_spec(resource.get("spec") or {})
    return Service(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        deleting=bool(metadata.get("deletionTimestamp")),
        spec=spec,
        refusal=refusal,
        status=resource.get("status") or {},
    )


def parse_spec(document: Mapping[str, Any]) -> tuple[InferenceServiceSpec | None, str]:
    """Return the spec, or None and why it can't be read: the API server may know another version of the schema."""
    try:
        return InferenceServiceSpec.model_validate(document), ""
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(("spec", *(str(part) for part in first["loc"])))
        return None, f"{where}: {first['msg']}; this operator and the installed CRD may be of different versions"


def waits(pod: Manifest, now: float) -> bool:
    """Whether a pod is on a node and its containers don't start: only events say why."""
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "Pending") or not (pod.get("spec") or {}).get("nodeName"):
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return now - datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp() > _PATIENCE_SECONDS
