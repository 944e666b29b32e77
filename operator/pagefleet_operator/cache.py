"""What the cluster holds of our services and their children, as the watches told. The one owner of that state.

Objects are kept as pruned JSON, packed: a thousand services take a few tens of megabytes. What we wrote ourselves is
put in from the answer, so the next look sees it even before the watch does; an old version never replaces a newer one.
"""

import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from pagefleet_contract.names import COMPONENT_ENGINE, KIND, LABEL_COMPONENT, LABEL_SERVICE, child_name
from pagefleet_operator.kinds import INFERENCE_SERVICE, POD, ResourceKind

Manifest = Mapping[str, Any]
_K = TypeVar("_K")


class ServiceKey(NamedTuple):
    """One InferenceService that is or was: work for an old uid is never work for a new object of the same name."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """An engine pod that can be asked for its figures."""

    pod_uid: str
    namespace: str
    service: str
    ip: str
    ready: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: str
    namespace: str
    name: str
    uid: str
    version: int
    owner_uid: str | None  # of children: the service's
    service: str | None  # of pods: the service's name
    replica: ReplicaAddress | None
    document: bytes

    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(zlib.decompress(self.document))
        return loaded


class Cache:
    """Objects by uid, found by service, owner and pod label."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._services: dict[tuple[str, str], str] = {}  # uid of the newest
        self._children: dict[str, set[str]] = {}  # by the owner's uid
        self._pods: dict[tuple[str, str], set[str]] = {}  # by (namespace, service)

    # --- what the watches and our own writes say

    def put(self, kind: ResourceKind, manifest: Manifest) -> bool:
        """Keep an object; return whether it is news."""
        entry = _entry(kind, manifest)
        known = self._entries.get(entry.uid)
        if known is not None and known.version >= entry.version:
            return False
        if known is not None and known.document == entry.document:
            # What has changed is nothing that anybody looks at.
            self._entries[entry.uid] = replace(known, version=entry.version)
            return False
        if known is not None:
            if entry.kind not in (KIND, POD.kind) and entry.owner_uid is None:
                # Somebody took the reference away: it stays our child, so that it is put back.
                entry = replace(entry, owner_uid=known.owner_uid)
            self._unlink(known)
        self._entries[entry.uid] = entry
        if entry.kind == KIND:
            self._name_service(entry)
        if entry.owner_uid is not None:
            self._children.setdefault(entry.owner_uid, set()).add(entry.uid)
        if entry.service is not None:
            self._pods.setdefault((entry.namespace, entry.service), set()).add(entry.uid)
        return True

    def drop(self, uid: str) -> bool:
        """Forget an object; return whether it was known."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return False
        if self._services.get((entry.namespace, entry.name)) == uid:
            del self._services[entry.namespace, entry.name]
        self._unlink(entry)
        return True

    # --- what reconciling asks

    def service(self, key: ServiceKey) -> dict[str, Any] | None:
        """Return the resource, or None where it is gone or another one bears its name."""
        if self._services.get((key.namespace, key.name)) != key.uid:
            return None
        return self._entries[key.uid].manifest()

    def key_of(self, namespace: str, name: str) -> ServiceKey | None:
        uid = self._services.get((namespace, name))
        return None if uid is None else ServiceKey(namespace, name, uid)

    def owner_of(self, uid: str) -> ServiceKey | None:
        """Return the service that an object, by its uid, is or belongs to."""
        entry = self._entries.get(uid)
        if entry is None:
            return None
        if entry.kind == KIND:
            return self.key_of(entry.namespace, entry.name)
        if entry.service is not None:
            return self.key_of(entry.namespace, entry.service)
        owner = self._entries.get(entry.owner_uid or "")
        return None if owner is None else self.key_of(owner.namespace, owner.name)

    def children(self, key: ServiceKey) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the live manifests of what the service owns, by kind and name."""
        entries = [self._entries[uid] for uid in self._children.get(key.uid, ())]
        return {(entry.kind, entry.name): entry.manifest() for entry in entries}

    def pods(self, key: ServiceKey) -> list[dict[str, Any]]:
        """Return the pods of the service's Deployments, in the order of their names."""
        uids = self._pods.get((key.namespace, key.name), ())
        entries = sorted((self._entries[uid] for uid in uids), key=lambda entry: entry.name)
        return [entry.manifest() for entry in entries]

    def service_keys(self) -> list[ServiceKey]:
        return [ServiceKey(namespace, name, uid) for (namespace, name), uid in self._services.items()]

    def replicas(self) -> Iterator[ReplicaAddress]:
        for uids in self._pods.values():
            for uid in uids:
                replica = self._entries[uid].replica
                if replica is not None:
                    yield replica

    def uids(self, kind: ResourceKind, namespace: str | None) -> set[str]:
        """Return what is known of one kind in a namespace; in all of them where it is None."""
        entries = self._entries.values()
        return {e.uid for e in entries if e.kind == kind.kind and namespace in (None, e.namespace)}

    def knows(self, uid: str) -> bool:
        return uid in self._entries

    def _unlink(self, entry: _Entry) -> None:
        if entry.owner_uid is not None:
            _discard(self._children, entry.owner_uid, entry.uid)
        if entry.service is not None:
            _discard(self._pods, (entry.namespace, entry.service), entry.uid)

    def _name_service(self, entry: _Entry) -> None:
        place = (entry.namespace, entry.name)
        known = self._entries.get(self._services.get(place, ""))
        if known is None or known.version <= entry.version:
            self._services[place] = entry.uid


def _discard(sets: dict[_K, set[str]], key: _K, uid: str) -> None:
    remaining = sets.get(key)
    if remaining is not None:
        remaining.discard(uid)
        if not remaining:
            del sets[key]


def _entry(kind: ResourceKind, manifest: Manifest) -> _Entry:
    metadata = manifest["metadata"]
    is_pod = kind == POD
    service = _service_of(metadata) if is_pod else None
    return _Entry(
        kind=kind.kind,
        namespace=sys.intern(metadata["namespace"]),
        name=metadata["name"],
        uid=metadata["uid"],
        version=_version(metadata),
        owner_uid=None if is_pod or kind == INFERENCE_SERVICE else owner_uid(manifest),
        service=service,
        replica=None if service is None else _replica(manifest),
        document=zlib.compress(json.dumps(_pruned(kind, manifest), separators=(",", ":")).encode(), level=1),
    )


def _service_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the service whose Deployment made a pod; None for one that only bears its labels: it is no replica, and
    it isn't sent the operator's key."""
    labels = metadata.get("labels") or {}
    service, component = labels.get(LABEL_SERVICE), labels.get(LABEL_COMPONENT)
    if service is None or component is None:
        return None
    made_by = f"{child_name(service, component)}-"
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") and reference["kind"] == "ReplicaSet" and reference["name"].startswith(made_by):
            return str(service)
    return None


def _version(metadata: Mapping[str, Any]) -> int:
    """Return the resource version as the growing number that it is."""
    version = metadata.get("resourceVersion")
    return int(version) if version and version.isdecimal() else 0


def owner_uid(manifest: Manifest) -> str | None:
    """Return the uid of the InferenceService that controls an object, or None where none does."""
    for reference in manifest["metadata"].get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == KIND:
            return str(reference["uid"])
    return None


_LEFT_OUT = ("managedFields", "resourceVersion")
_KEPT_OF_CONTAINERS = ("name", "resources")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def _pruned(kind: ResourceKind, manifest: Manifest) -> dict[str, Any]:
    """Return what somebody looks at. Lists of a watch don't name kind and version; they are put back."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _LEFT_OUT}
    annotations = metadata.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
    pruned = {**manifest, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    if kind == POD:
        spec = manifest.get("spec") or {}
        containers = [{name: container.get(name) for name in _KEPT_OF_CONTAINERS} for container in spec["containers"]]
        pruned["spec"] = {"nodeName": spec.get("nodeName"), "containers": containers}
    return pruned


def _replica(manifest: Manifest) -> ReplicaAddress | None:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    wanted = labels.get(LABEL_COMPONENT) == COMPONENT_ENGINE and not metadata.get("deletionTimestamp")
    if not wanted or not status.get("podIP") or status.get("phase") != "Running":
        return None
    conditions = status.get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ReplicaAddress(metadata["uid"], metadata["namespace"], labels.get(LABEL_SERVICE, ""), status["podIP"], ready)
