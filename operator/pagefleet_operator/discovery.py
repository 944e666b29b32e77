"""Which APIs the cluster serves: our own must be there, with every field that we know; others may come and go."""

import asyncio
import logging
from collections.abc import Callable

from pagefleet_contract.installed_schema import OPENAPI_PATH, missing_fields
from pagefleet_contract.names import CRD_NAME
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.faults import AbsentFault, Fault
from pagefleet_operator.kinds import INFERENCE_SERVICE, POD_MONITOR, ResourceKind
from pagefleet_operator.observed import OptionalApis

logger = logging.getLogger(__name__)

_POLL_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_MOST_NAMED = 10


class ApiAbsent(Exception):
    """Our own API isn't served; the message says what to do."""


class Discovery:
    """Owns what is known of the optional APIs, and of the fields that the installed CRD lacks."""

    def __init__(self, api: ClusterApi, on_change: Callable[[], None]) -> None:
        self._api = api
        self._on_change = on_change
        self.optional = OptionalApis()
        self.wrong = "our own API hasn't been looked for yet"  # empty once it is there
        self.missing_fields: tuple[str, ...] | None = None  # None until they were looked for

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
            await self._look_for_optional()
            if self.missing_fields != ():
                await self.compare_schema()
            await asyncio.sleep(_POLL_SECONDS)

    async def compare_schema(self) -> None:
        """Say what the installed CRD lacks. Fields that it doesn't have never arrive here, and nobody is told."""
        try:
            found = missing_fields(await self._api.get(OPENAPI_PATH))
        except (AbsentFault, LookupError):
            return  # the server describes a new CRD some seconds late
        except Fault as fault:
            logger.warning("whether the CRD %s has every field isn't known: %s", CRD_NAME, fault.message)
            return
        before, self.missing_fields = self.missing_fields, found
        if found and found != before:
            logger.warning("%s", _lacks(found))
        elif before and not found:
            logger.info("the CRD %s has every field that this operator knows now", CRD_NAME)

    async def _look_for_optional(self) -> None:
        try:
            found = OptionalApis(pod_monitors=await self._serves(POD_MONITOR))
        except Fault as fault:
            logger.warning("optional APIs can't be looked for: %s", fault.message)
            return
        changed, self.optional = found != self.optional, found
        if changed:
            logger.info("optional APIs changed", extra={"podMonitors": found.pod_monitors})
            self._on_change()

    async def _serves(self, kind: ResourceKind) -> bool:
        try:
            resources = (await self._api.get(kind.base)).get("resources") or ()
        except AbsentFault:
            return False
        return any(resource["name"] == kind.plural for resource in resources)


def _lacks(fields: tuple[str, ...]) -> str:
    more = f" and {len(fields) - _MOST_NAMED} more" if len(fields) > _MOST_NAMED else ""
    return (
        f"the CRD {CRD_NAME} is older than this operator and lacks {', '.join(fields[:_MOST_NAMED])}{more}: the API"
        " server drops them from every manifest; upgrade the release that installs it (crds.install=true), or"
        " `kubectl apply` the definition of this version"
    )
