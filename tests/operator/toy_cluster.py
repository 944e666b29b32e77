"""A cluster in a page: the Deployment controller's arithmetic, a scheduler that counts one resource, pods that load and
drain. It carries out plans and shows the world as planning sees it, so that a roll can be run to its end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from pydantic.alias_generators import to_camel

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import ANNOTATION_DELETION_COST, ANNOTATION_TEMPLATE_HASH, COMPONENT_ENGINE
from pagefleet_contract.policy import LIVE_PATHS
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.actions import AnnotatePod, Apply, Delete, Plan, SetPolicy
from pagefleet_operator.observed import Manifest, Observed, Pod, Trouble
from tests.operator.builders import NOW, figures, planned, router, service, settings

GPU = "nvidia.com/gpu"


@dataclass
class ToyPod:
    name: str
    template_hash: str
    asks: int
    scheduled: bool = False
    ready: bool = False
    deleting: bool = False
    cost: int | None = None
    in_flight: int = 0
    policy: dict[str, int] = field(default_factory=dict)


@dataclass
class ToyCluster:
    """Owns its world. `step` lets one thing happen; `reconcile` looks, plans and applies once."""

    spec: InferenceServiceSpec
    gpus: int
    random: Random
    settings: OperatorSettings = field(default_factory=settings)
    generation: int = 1
    now: datetime = NOW
    children: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: list[ToyPod] = field(default_factory=list)
    status: Mapping[str, Any] = field(default_factory=dict)
    made: int = 0
    restarts: int = 0  # pods that went away
    plans: list[Plan] = field(default_factory=list)

    # --- the user

    def edit(self, **fields: Any) -> None:
        document = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        self.spec = InferenceServiceSpec.model_validate({**document, **fields})
        self.generation += 1

    # --- the operator

    def observe(self) -> Observed:
        pods = (*(self._pod(one) for one in self.pods), router())
        resource = service(self.spec, generation=self.generation, status=self.status)
        return Observed(resource, dict(self.children), pods, status_written_seconds=self.now.timestamp())

    def reconcile(self) -> Plan:
        found = planned(self.observe(), self.settings, self.now)
        for action in found.actions:
            match action:
                case Apply(manifest):
                    self._apply(manifest)
                case Delete():
                    del self.children[action.kind, action.name]
                case AnnotatePod():
                    (one,) = [pod for pod in self.pods if pod.name == action.name]
                    cost = action.annotations[ANNOTATION_DELETION_COST]
                    one.cost = None if cost is None else int(cost)
                case SetPolicy():
                    (one,) = [pod for pod in self.pods if pod.name == action.pod]
                    one.policy = _by_field(action.policy)
        self.status = found.status or self.status
        self.plans.append(found)
        return found

    def settle(self, steps: int = 400) -> None:
        """Let everything happen until nothing does any more."""
        for _ in range(steps):
            before = self._shape()
            self.reconcile()
            self.control()
            self.advance(1.0)
            last = self.reconcile()
            if self._shape() == before and not last.actions and last.again_in_seconds is None:
                return
        raise AssertionError(f"nothing settled in {steps} steps: {self._shape()}")

    # --- the cluster

    @property
    def deployment(self) -> dict[str, Any] | None:
        return self.children.get(("Deployment", "chat-engine"))

    @property
    def active(self) -> list[ToyPod]:
        return [one for one in self.pods if not one.deleting]

    @property
    def ready(self) -> list[ToyPod]:
        return [one for one in self.active if one.ready]

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the most pods and the fewest ready ones that the Deployment allows."""
        assert self.deployment is not None
        wanted, rolling = self.deployment["spec"]["replicas"], self.deployment["spec"]["strategy"]["rollingUpdate"]
        return wanted + rolling["maxSurge"], wanted - rolling["maxUnavailable"]

    def control(self) -> None:
        """One sync of the Deployment controller: new pods first, then old ones, as its rolling update does."""
        if self.deployment is None:
            return
        wanted, hashed = self.deployment["spec"]["replicas"], self._hash(self.deployment)
        most, fewest = self.bounds
        new = [one for one in self.active if one.template_hash == hashed]
        old = [one for one in self.active if one.template_hash != hashed]
        if len(new) < wanted:
            for _ in range(max(0, min(most - len(self.active), wanted - len(new)))):
                self._make(hashed)
        elif len(new) > wanted:
            self._remove(new, len(new) - wanted)
        unready_new = sum(1 for one in self.active if one.template_hash == hashed and not one.ready)
        may_go = len(self.active) - fewest - unready_new
        broken = [one for one in old if not one.ready]
        self._remove(broken, min(len(broken), max(0, may_go)))
        serving = [one for one in old if one.ready and not one.deleting]
        self._remove(serving, max(0, min(len(serving), may_go - len(broken), len(self.ready) - fewest)))
        self.deployment["status"] = {"observedGeneration": self.deployment["metadata"]["generation"]}

    def _schedule(self) -> None:
        for one in self.active:
            used = sum(other.asks for other in self.pods if other.scheduled)
            one.scheduled = one.scheduled or used + one.asks <= self.gpus

    def advance(self, chance: float) -> None:
        """A second passes: some pods get ready, some that were told to go are gone. The scheduler is a second late."""
        self.now += timedelta(seconds=1)
        self._schedule()
        for one in list(self.pods):
            if self.random.random() >= chance:
                continue
            if one.deleting:
                self.pods.remove(one)
            elif one.scheduled:
                one.ready = True

    def _apply(self, manifest: Manifest) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        there = self.children.get(key)
        metadata: dict[str, Any] = {
            "uid": f"uid-{key[1]}",
            "creationTimestamp": NOW.isoformat(),
            **manifest["metadata"],
        }
        metadata["generation"] = 1 + (there["metadata"]["generation"] if there else 0)
        self.children[key] = {**manifest, "metadata": metadata, "status": (there or {}).get("status") or {}}

    def _make(self, hashed: str) -> None:
        assert self.deployment is not None
        limits = self.deployment["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})
        self.made += 1
        policy = _by_field(json.loads(self.children["ConfigMap", "chat-live"]["data"]["live.json"]))
        self.pods.append(ToyPod(f"chat-engine-{self.made}", hashed, int(limits.get(GPU, 0)), policy=policy))

    def _remove(self, pods: list[ToyPod], count: int) -> None:
        """Take away as a ReplicaSet does: unscheduled before scheduled, unready before ready, then by cost."""
        order = sorted(
            pods, key=lambda one: (one.scheduled, one.ready, one.cost or 0, -int(one.name.rpartition("-")[2]))
        )
        for one in order[:count]:
            self.restarts += 1
            one.deleting = True
            if not one.scheduled:
                self.pods.remove(one)

    def _pod(self, one: ToyPod) -> Pod:
        told = f"0/1 nodes are available: 1 Insufficient {GPU}."
        return Pod(
            name=one.name,
            uid=one.name,
            component=COMPONENT_ENGINE,
            ip="10.0.0.1",
            template_hash=one.template_hash,
            created_seconds=float(one.name.rpartition("-")[2]),
            scheduled=one.scheduled,
            ready=one.ready,
            deleting=one.deleting,
            restarts=0,
            trouble=None if one.scheduled else Trouble("Unschedulable", told),
            deletion_cost=one.cost,
            figures=replace(figures(), in_flight=one.in_flight, policy=one.policy) if one.ready else None,
            requests={GPU: str(one.asks)},
        )

    def _shape(self) -> object:
        pods = sorted((one.name, one.scheduled, one.ready, one.deleting) for one in self.pods)
        return pods, str(self.children.get(("Deployment", "chat-engine"), {}).get("spec")), str(self.status)

    def hash_of_spec(self) -> str:
        assert self.deployment is not None
        return self._hash(self.deployment)

    def _hash(self, deployment: Mapping[str, Any]) -> str:
        return str(deployment["spec"]["template"]["metadata"]["annotations"][ANNOTATION_TEMPLATE_HASH])


def _by_field(policy: Mapping[str, int]) -> dict[str, int]:
    return {name: policy[to_camel(name)] for name in LIVE_PATHS if to_camel(name) in policy}
