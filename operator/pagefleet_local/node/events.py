"""Events of the node on pods and Services: what `kubectl describe` shows. Repeated ones are counted, not repeated."""

import logging
import time
import uuid
from collections import OrderedDict

from pagefleet_local.node.api import MERGE, TROUBLE, Api
from pagefleet_local.node.pods import Manifest, name_of, namespace_of
from pagefleet_local.node.status import timestamp

_KEPT = 1000
_log = logging.getLogger(__name__)


class Events:
    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._posted: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()

    async def post(self, kind: str, thing: Manifest, reason: str, message: str, warning: bool = False) -> None:
        """Post it, or count it up where the same was posted. An event that can't be posted is logged, no more."""
        _log.info("%s %s/%s: %s: %s", kind, namespace_of(thing), name_of(thing), reason, message)
        key = (str(thing["metadata"].get("uid")), reason, message)
        name, count = self._posted.get(key, (f"{name_of(thing)[:200]}.{uuid.uuid4().hex[:16]}", 0))
        self._posted[key] = (name, count + 1)
        self._posted.move_to_end(key)
        while len(self._posted) > _KEPT:
            self._posted.popitem(last=False)
        path, now = f"/api/v1/namespaces/{namespace_of(thing)}/events", timestamp(time.time())
        try:
            if count:
                body: Manifest = {"count": count + 1, "lastTimestamp": now}
                await self._api.request("PATCH", f"{path}/{name}", body, content_type=MERGE)
            else:
                await self._api.request("POST", path, self._event(kind, thing, name, reason, message, warning, now))
        except TROUBLE as error:
            # In a namespace that is being deleted every one is refused.
            _log.info("event %s of %s is not posted: %s", reason, name_of(thing), error)

    def _event(
        self, kind: str, thing: Manifest, name: str, reason: str, message: str, warning: bool, now: str
    ) -> Manifest:
        return {
            "metadata": {"name": name, "namespace": namespace_of(thing)},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": kind,
                "name": name_of(thing),
                "namespace": namespace_of(thing),
                "uid": thing["metadata"].get("uid"),
                "resourceVersion": thing["metadata"].get("resourceVersion"),
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
