"""Events of the cluster: writes ours on the resource, each once in a while, and reads those of a pod that waits."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pagefleet_contract.names import API_VERSION, FIELD_MANAGER, KIND
from pagefleet_operator.actions import Announcement
from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.faults import Fault, LeavingFault
from pagefleet_operator.kinds import EVENT
from pagefleet_operator.leadership import Fence

logger = logging.getLogger(__name__)

_REPEAT_SECONDS = 600.0
_MAX_REMEMBERED = 10_000
_MESSAGE_LENGTH = 1024  # what the API takes


class Announcer:
    """Owns the memory of what was said lately. An event that can't be written is logged and no more: it is no state."""

    def __init__(self, api: ClusterApi, fence: Fence, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._fence = fence
        self._clock = clock
        self._said: dict[str, float] = {}

    async def announce(self, key: ServiceKey, announcement: Announcement) -> None:
        """Raises NotLeading."""
        name = _event_name(key, announcement)
        now = self._clock()
        if now - self._said.get(name, float("-inf")) < _REPEAT_SECONDS:
            return
        self._remember(name, now)
        self._fence.check()
        event = _event(key, name, announcement, datetime.now(UTC))
        try:
            await self._api.request("POST", EVENT.path(key.namespace), {"fieldManager": FIELD_MANAGER}, event)
        except LeavingFault:
            return
        except Fault as fault:
            # The one of this name was written before this process began; it still stands.
            if fault.reason != "AlreadyExists":
                logger.warning("the event wasn't written: %s", fault.message)

    def _remember(self, name: str, now: float) -> None:
        if len(self._said) >= _MAX_REMEMBERED:
            self._said = {said: at for said, at in self._said.items() if now - at < _REPEAT_SECONDS}
        self._said[name] = now


def _event_name(key: ServiceKey, announcement: Announcement) -> str:
    said = "\n".join((key.uid, announcement.type, announcement.reason, announcement.message))
    return f"{key.name}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def _event(key: ServiceKey, name: str, announcement: Announcement, now: datetime) -> dict[str, Any]:
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": key.name,
            "namespace": key.namespace,
            "uid": key.uid,
        },
        "type": announcement.type,
        "reason": announcement.reason,
        "message": announcement.message[:_MESSAGE_LENGTH],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


class PodEvents:
    """Owns the events that were read of pods which wait; they are read again after a while."""

    def __init__(
        self, api: ClusterApi, keep_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._read: dict[str, tuple[float, tuple[dict[str, Any], ...]]] = {}

    async def of(self, namespace: str, pod_uid: str) -> tuple[dict[str, Any], ...]:
        """Return the pod's events. Where they can't be read there are none: the pod's own status still speaks."""
        now = self._clock()
        self._read = {uid: known for uid, known in self._read.items() if now - known[0] < self._keep_seconds}
        if pod_uid not in self._read:
            query = {"fieldSelector": f"involvedObject.uid={pod_uid}", "limit": "50"}
            try:
                found = (await self._api.get(EVENT.path(namespace), query)).get("items") or []
            except Fault as fault:
                logger.warning("a pod's events weren't read: %s", fault.message)
                found = []
            self._read[pod_uid] = (now, tuple(_pruned(event) for event in found))
        return self._read[pod_uid][1]


_KEPT = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime", "series")


def _pruned(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in _KEPT if event.get(name) is not None}
