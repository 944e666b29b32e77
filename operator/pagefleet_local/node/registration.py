"""The node's place in the cluster: its Node object, and the Lease by which the cluster knows that it lives."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pagefleet_local.node.api import MERGE, STRATEGIC_MERGE, TROUBLE, Api, ApiError
from pagefleet_local.node.machine import node_object
from pagefleet_local.node.pods import Manifest

LEASE_SECONDS = 40
RENEW_SECONDS = 10
HEARTBEAT_SECONDS = 300
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_log = logging.getLogger(__name__)


class Registration:
    """`status` makes the Node's status for a time and the time since which it has been well."""

    def __init__(self, api: Api, name: str, status: Callable[[float, float], Manifest]) -> None:
        self._api = api
        self._name = name
        self._status = status
        self._since = time.time()
        self._heartbeat_due = 0.0

    async def run(self) -> None:
        """Register and stay registered; an API server that is away is waited for."""
        pause = 0.2
        while True:
            try:
                if time.monotonic() >= self._heartbeat_due:
                    await self._register()
                    self._heartbeat_due = time.monotonic() + HEARTBEAT_SECONDS
                await self._renew()
                pause = RENEW_SECONDS
            except TROUBLE as error:
                _log.warning("the node can't tell the API server that it lives: %s", str(error) or type(error).__name__)
                self._heartbeat_due = 0.0
                pause = min(pause * 2, RENEW_SECONDS / 2)
            await asyncio.sleep(pause)

    async def _register(self) -> None:
        try:
            await self._api.request("POST", "/api/v1/nodes", node_object(self._name))
            _log.info("registered node %s", self._name)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            labels = {"metadata": {"labels": node_object(self._name)["metadata"]["labels"]}}
            await self._api.request("PATCH", f"/api/v1/nodes/{self._name}", labels, content_type=STRATEGIC_MERGE)
        body = {"status": self._status(time.time(), self._since)}
        await self._api.request("PATCH", f"/api/v1/nodes/{self._name}/status", body, content_type=STRATEGIC_MERGE)

    async def _renew(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        try:
            await self._api.request("PATCH", f"{_LEASES}/{self._name}", {"spec": spec}, content_type=MERGE)
        except ApiError as error:
            if error.code != 404:
                raise
            lease: Manifest = {"metadata": {"name": self._name, "namespace": "kube-node-lease"}, "spec": spec}
            await self._api.request("POST", _LEASES, lease)
            self._heartbeat_due = 0.0  # a Node that was deleted took its Lease along
