"""Carries out what a plan says. It chooses nothing: it checks that it still may, sends, and keeps the answer."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagefleet_contract.names import API_VERSION, FIELD_MANAGER, KIND
from pagefleet_operator.actions import Action, AnnotatePod, Apply, Delete, SetPolicy
from pagefleet_operator.cache import Cache, ServiceKey, owner_uid
from pagefleet_operator.children import Children, Key, key_of
from pagefleet_operator.cluster_api import APPLY, JSON, MERGE, ClusterApi
from pagefleet_operator.faults import AbsentFault, Fault, LeavingFault, NameTakenFault, RefusedFault
from pagefleet_operator.figures import FiguresBook
from pagefleet_operator.kinds import INFERENCE_SERVICE, POD, POD_MONITOR, kind_named, kind_of
from pagefleet_operator.leadership import Fence
from pagefleet_operator.strangers import check_owner, in_one, not_held_back, unmade

logger = logging.getLogger(__name__)

Manifest = Mapping[str, Any]
WriteResult = Literal["done", "skipped", "temporary", "refused"]
# Our own child, nothing, or why neither can be said.
_Bearer = Manifest | Fault | None


class Outdated(Exception):
    """The service is gone, going or another one by now: what was planned for it has no object any more."""


@dataclass(frozen=True, slots=True)
class Report:
    """How many actions changed something in the cluster, and what was in the way, first things first."""

    num_done: int
    faults: tuple[Fault, ...]


class Applier:
    """Owns the memory of what the server has accepted: what it stores differently than we write it is no reason to
    write it again."""

    def __init__(
        self,
        api: ClusterApi,
        cache: Cache,
        fence: Fence,
        figures: FiguresBook,
        on_write: Callable[[str, WriteResult], None],
    ) -> None:
        self._api = api
        self._cache = cache
        self._fence = fence
        self._figures = figures
        self._on_write = on_write
        self._accepted: dict[ServiceKey, dict[str, tuple[bytes, bytes]]] = {}

    async def carry_out(self, key: ServiceKey, actions: tuple[Action, ...], children: Children) -> Report:
        """Do what can be done. After a fault nothing is deleted any more. Raises Outdated, NotLeading."""
        bearers = await self._bearers(key, unmade(actions, children))
        taken = {name: fault for name, fault in bearers.items() if isinstance(fault, NameTakenFault)}
        for (kind, name), fault in taken.items():
            self._on_write(kind, "refused")
            logger.warning("apply %s %s: %s", kind, name, fault.message, extra=_extra(key))
        num_done, faults = 0, list[Fault](in_one(taken.values()))
        for action in not_held_back(actions, taken.keys(), children):
            if faults and isinstance(action, Delete):
                continue
            kind = _kind_word(action)
            try:
                changed = await self._do(key, action, children, bearers)
            except LeavingFault as fault:
                raise Outdated(fault.message) from fault
            except Fault as fault:
                self._on_write(kind, "refused" if isinstance(fault, RefusedFault) else "temporary")
                logger.warning("%s: %s", _words(action), fault.message, extra=_extra(key))
                faults.append(fault)
                continue
            self._on_write(kind, "done" if changed else "skipped")
            if changed:
                num_done += not isinstance(action, SetPolicy)
                logger.info("%s: %s", _words(action), action.reason, extra=_extra(key))
        return Report(num_done, tuple(faults))

    async def write_status(self, key: ServiceKey, live: Manifest, status: Mapping[str, Any]) -> bool:
        """Write the whole status, and return whether it was news. Raises Outdated, NotLeading or a Fault."""
        desired, found = _signature(status), _signature(live.get("status") or {})
        if desired == found or self._was_accepted(key, "status", desired, found):
            return False
        self._check(key)
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": key.uid},
            "status": status,
        }
        path = INFERENCE_SERVICE.path(key.namespace, key.name, "status")
        try:
            answer = await self._server_side_apply(path, body)
        except (AbsentFault, LeavingFault) as fault:
            raise Outdated(fault.message) from fault
        except Fault as fault:
            self._on_write(KIND, "refused" if isinstance(fault, RefusedFault) else "temporary")
            raise
        self._on_write(KIND, "done")
        self._accept(key, "status", desired, _signature(answer.get("status") or {}))
        self._cache.put(INFERENCE_SERVICE, answer)
        return True

    def forget(self, key: ServiceKey) -> None:
        self._accepted.pop(key, None)

    async def _do(self, key: ServiceKey, action: Action, children: Children, bearers: Mapping[Key, _Bearer]) -> bool:
        match action:
            case Apply(manifest):
                bearer = children.get(key_of(manifest)) or bearers[key_of(manifest)]
                if isinstance(bearer, Fault):
                    raise bearer
                return await self._apply(key, manifest, bearer)
            case Delete():
                return await self._delete(key, action)
            case AnnotatePod():
                return await self._annotate(key, action)
            case SetPolicy(_, ip, policy):
                self._check(key)
                await self._figures.set_policy(ip, key, policy)
                return True

    async def _apply(self, key: ServiceKey, manifest: Manifest, live: Manifest | None) -> bool:
        kind = kind_of(manifest)
        name = manifest["metadata"]["name"]
        path = kind.path(key.namespace, name)
        slot, desired = f"{kind.kind} {name}", _signature(manifest)
        if live is not None and self._was_accepted(key, slot, desired, _state_signature(live)):
            return False
        self._check(key)
        body = dict(manifest)
        if live is not None:
            # Another object that has taken the name meanwhile is not the one that was planned for.
            body["metadata"] = {**manifest["metadata"], "uid": live["metadata"]["uid"]}
        answer = await self._server_side_apply(path, body)
        self._accept(key, slot, desired, _state_signature(answer))
        if kind != POD_MONITOR:
            self._cache.put(kind, answer)
        return True

    async def _bearers(self, key: ServiceKey, manifests: tuple[Manifest, ...]) -> dict[Key, _Bearer]:
        """Look what bears the names of children that no watch has told of. Raises Outdated."""
        found: dict[Key, _Bearer] = {}
        for manifest in manifests:
            path = kind_of(manifest).path(key.namespace, manifest["metadata"]["name"])
            try:
                found[key_of(manifest)] = await self._own(key, path)
            except LeavingFault as fault:
                raise Outdated(fault.message) from fault
            except AbsentFault:
                found[key_of(manifest)] = None
            except Fault as fault:
                found[key_of(manifest)] = fault
        return found

    async def _own(self, key: ServiceKey, path: str) -> Manifest:
        found = await self._api.get(path)
        owner = owner_uid(found)
        other = None if owner is None else self._cache.owner_of(owner)
        check_owner(found, owner, key.uid, other.name if other is not None and other.uid == owner else None)
        return found

    async def _server_side_apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._api.request("PATCH", path, query, body, APPLY)

    async def _delete(self, key: ServiceKey, action: Delete) -> bool:
        self._check(key)
        path = kind_named(action.api_version, action.kind).path(key.namespace, action.name)
        body = {"preconditions": {"uid": action.uid}, "propagationPolicy": "Background"}
        try:
            await self._api.request("DELETE", path, body=body, content_type=JSON)
        except AbsentFault:
            self._cache.drop(action.uid)
            return False
        self._accepted.get(key, {}).pop(f"{action.kind} {action.name}", None)
        return True

    async def _annotate(self, key: ServiceKey, action: AnnotatePod) -> bool:
        self._check(key)
        body = {"metadata": {"uid": action.uid, "annotations": dict(action.annotations)}}
        path = POD.path(key.namespace, action.name)
        try:
            answer = await self._api.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)
        except AbsentFault:
            return False
        self._cache.put(POD, answer)
        return True

    def _check(self, key: ServiceKey) -> None:
        self._fence.check()
        service = self._cache.service(key)
        if service is None or service["metadata"].get("deletionTimestamp"):
            raise Outdated(f"{key.namespace}/{key.name} of uid {key.uid} is gone or going")

    def _was_accepted(self, key: ServiceKey, slot: str, desired: bytes, found: bytes) -> bool:
        return self._accepted.get(key, {}).get(slot) == (desired, found)

    def _accept(self, key: ServiceKey, slot: str, desired: bytes, found: bytes) -> None:
        self._accepted.setdefault(key, {})[slot] = (desired, found)


# Fields that move without anybody changing what is asked for.
_MOVING = ("managedFields", "resourceVersion", "generation")


def _state_signature(manifest: Manifest) -> bytes:
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _MOVING}
    body = {name: value for name, value in manifest.items() if name not in ("status", "metadata", "apiVersion", "kind")}
    return _signature({**body, "metadata": metadata})


def _signature(value: Mapping[str, Any]) -> bytes:
    content = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def _kind_word(action: Action) -> str:
    match action:
        case Apply(manifest):
            return str(manifest["kind"])
        case Delete():
            return action.kind
        case AnnotatePod():
            return POD.kind
        case SetPolicy():
            return "Policy"


def _words(action: Action) -> str:
    match action:
        case Apply(manifest):
            return f"apply {manifest['kind']} {manifest['metadata']['name']}"
        case Delete():
            return f"delete {action.kind} {action.name}"
        case AnnotatePod():
            return f"annotate Pod {action.name}"
        case SetPolicy():
            return f"set the live settings of {action.pod}"


def _extra(key: ServiceKey) -> dict[str, str]:
    return {"namespace": key.namespace, "service": key.name, "uid": key.uid}
