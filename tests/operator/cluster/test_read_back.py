"""What we apply, read back from a real API server: no difference where nobody changed it, one for each hand edit."""

import copy
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import API_VERSION, KIND
from pagefleet_operator.drift import differs
from pagefleet_operator.kinds import CHILDREN
from pagefleet_operator.observed import Manifest, Observed, Service
from pagefleet_operator.plan import plan
from tests.e2e.cluster import Cluster, Object
from tests.operator.builders import REAL, ROOT_KEY, SIMULATED, applied, settings
from tests.operator.test_manifests import EVERYTHING

pytestmark = pytest.mark.cluster

_NUMBERS = itertools.count(1)
_SETTINGS = settings(networkPolicies="Enabled", images={"pullSecrets": ["ours"]})
# Spelled as people do, and as the API server doesn't keep it.
_ODD = {
    "requests": {"cpu": "1000m", "memory": "2048Mi", "ephemeral-storage": "0.5Gi"},
    "limits": {"memory": "4096Mi"},
}
_ODD_TEMPLATE = {
    "resources": _ODD,
    "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "", "effect": "NoExecute", "tolerationSeconds": 0}],
    "env": [
        {"name": "EMPTY", "value": ""},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": False}}},
        {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ],
    "volumes": [
        {"name": "claim", "persistentVolumeClaim": {"claimName": "d", "readOnly": False}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1024Mi"}},
        {
            "name": "mixed",
            "projected": {"sources": [{"configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}}]},
        },
        {
            "name": "own",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}
                }
            },
        },
    ],
    "volumeMounts": [{"name": "claim", "mountPath": "/claim", "readOnly": False, "subPath": ""}],
}
_SPECS: dict[str, dict[str, Any]] = {
    "simulated": {**SIMULATED},
    "everything": EVERYTHING,
    "odd": {**REAL, "podTemplate": _ODD_TEMPLATE},
    "stopped": {**SIMULATED, "replicas": 0, "routing": {"mode": "Service"}, "rollout": {"drainTimeoutSeconds": 0}},
}


class Applied:
    """One service whose children were applied as the operator does."""

    def __init__(self, cluster: Cluster, spec: dict[str, Any]) -> None:
        self.cluster = cluster
        self.namespace = f"read-back-{next(_NUMBERS)}"
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "chat", "namespace": self.namespace}}
        self.created = cluster.create({**head, "spec": spec})
        self.now = datetime.now(UTC) + timedelta(minutes=5)
        self.desired = applied(plan(self._observed({}), _SETTINGS, ROOT_KEY, self.now))
        for manifest in self.desired.values():
            cluster.apply(manifest)

    def observe(self) -> Observed:
        return self._observed({(one["kind"], one["metadata"]["name"]): one for one in self._children()})

    def settled(self) -> Observed:
        """Return the world when the controllers have seen the children."""
        self.cluster.wait(
            "Deployments that were seen",
            "Deployment",
            self.namespace,
            lambda found: all(
                (one.get("status") or {}).get("observedGeneration") == one["metadata"]["generation"] for one in found
            ),
        )
        return self.observe()

    def _children(self) -> Iterator[Object]:
        for kind in CHILDREN:
            for one in self.cluster.all(kind.kind, self.namespace, version=kind.api_version):
                if any(owner["kind"] == KIND for owner in one["metadata"].get("ownerReferences") or ()):
                    yield {**one, "apiVersion": kind.api_version, "kind": kind.kind}

    def _observed(self, children: dict[tuple[str, str], Manifest]) -> Observed:
        resource = self.cluster.get(KIND, self.namespace, "chat")
        assert resource is not None
        metadata = resource["metadata"]
        spec = InferenceServiceSpec.model_validate(resource["spec"])
        service = Service(
            "chat",
            self.namespace,
            metadata["uid"],
            metadata["generation"],
            False,
            spec,
            "",
            resource.get("status") or {},
        )
        return Observed(service, children)


@pytest.fixture(params=_SPECS)
def world(request: pytest.FixtureRequest, cluster: Cluster) -> Applied:
    return Applied(cluster, _SPECS[request.param])


def test_what_nobody_changed_is_not_applied_or_written_again(world: Applied) -> None:
    first = plan(world.settled(), _SETTINGS, ROOT_KEY, world.now)
    assert [action.reason for action in first.actions] == []
    assert first.status is not None
    world.cluster.patch_status(KIND, world.namespace, "chat", first.status, version=API_VERSION)
    again = plan(world.observe(), _SETTINGS, ROOT_KEY, world.now + timedelta(minutes=5))
    assert (again.actions, again.status, again.announcements) == ((), None, ())


def test_every_hand_edit_of_a_value_is_seen(world: Applied) -> None:
    children = world.settled().children
    unseen = [
        (key, path)
        for key, manifest in world.desired.items()
        for path, value in _values(json.loads(json.dumps(manifest)))
        if path[0] not in ("apiVersion", "kind") and path[-1] != "namespace" and path != ("metadata", "name")
        if differs(manifest, _edited(children[key], path, value)) is None
    ]
    assert unseen == []


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every plain value of a manifest with the path to it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
    else:
        for key, item in items:
            yield from _values(item, (*path, key))


def _edited(live: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the live object with the value at the path changed; lists keep our order on the server."""
    changed = copy.deepcopy(live)
    place = changed
    for step in path[:-1]:
        if isinstance(place, dict):
            place = place.setdefault(step, {})
        else:
            place = place[step]
    place[path[-1]] = _other(value)
    return changed


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else "edited"
