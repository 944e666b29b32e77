"""Which APIs the cluster serves: our own must be there, others may come and go."""

import asyncio
import logging
from collections.abc import Callable

from pagefleet_contract.names import CRD_NAME
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.faults import AbsentFault, Fault
from pagefleet_operator.kinds import INFERENCE_SERVICE, POD_MONITOR, ResourceKind
from pagefleet_operator.observed import OptionalApis

logger = logging.getLogger(__name__)

_POLL_SECONDS = 60.0
_RETRY_SECONDS = 1.0


class ApiAbsent(Exception):
    """Our own API isn't served; the message says what to do."""


class Discovery:
    """Owns what is known of the optional APIs."""

    def __init__(self, api: ClusterApi, on_change: Callable[[], None]) -> None:
        self._api = api
        self._on_change = on_change
        self.optional = OptionalApis()
        self.wrong = "our own API hasn't been looked for yet"  # empty once it is there

    async def need_own(self, patience_seconds: float) -> None:
        """Wait for our API. Raises ApiAbsent: kopf would never serve it later."""
        deadline = asyncio.get_running_loop().time() + patience_seconds
        while True:
            try:
                if await self._serves(INFERENCE_SERVICE):
                    self.wrong = ""
                    return
                self.wrong = f"the CRD {CRD_NAME} isn't installed; install the chart with crds.install=true"
            except Fault as fault:
                self.wrong = f"the API server can't be asked: {fault.message}"
            if asyncio.get_running_loop().time() > deadline:
                raise ApiAbsent(self.wrong)
            await asyncio.sleep(_RETRY_SECONDS)

    async def poll(self) -> None:
        """Until cancelled."""
        while True:
            try:
                found = OptionalApis(pod_monitors=await self._serves(POD_MONITOR))
            except Fault as fault:
                logger.warning("optional APIs can't be looked for: %s", fault.message)
            else:
                changed, self.optional = found != self.optional, found
                if changed:
                    logger.info("optional APIs changed", extra={"podMonitors": found.pod_monitors})
                    self._on_change()
            await asyncio.sleep(_POLL_SECONDS)

    async def _serves(self, kind: ResourceKind) -> bool:
        try:
            resources = (await self._api.get(kind.base)).get("resources") or ()
        except AbsentFault:
            return False
        return any(resource["name"] == kind.plural for resource in resources)
