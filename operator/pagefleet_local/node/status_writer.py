"""Writes one pod's status to the API: only what has changed, and nobody else does."""

import asyncio
import logging
import time
from collections.abc import Callable

from pagefleet_local.node.api import STRATEGIC_MERGE, TROUBLE, ApiError
from pagefleet_local.node.pod_state import PodState
from pagefleet_local.node.pods import Manifest, conditions, name_of, namespace_of
from pagefleet_local.node.status import Failure, by_type, pod_status, status_patch

_LONGEST_PAUSE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class StatusWriter:
    def __init__(self, state: PodState, volumes_ready: Callable[[], bool]) -> None:
        self._state = state
        self._volumes_ready = volumes_ready
        self._conditions = conditions(state.pod)
        self._written: Manifest | None = None
        self.failure: Failure | None = None

    async def run(self) -> None:
        """Write every change, the newest state each time."""
        while True:
            await self.write()
            await self._state.changed.wait()
            self._state.changed.clear()

    async def write(self) -> None:
        """Write the status as it is now; an API server that is away is waited for, a pod that is gone is not."""
        pause = 0.1
        while True:
            status = self._status()
            if status == self._written:
                return
            pod = self._state.pod
            path = f"/api/v1/namespaces/{namespace_of(pod)}/pods/{name_of(pod)}/status"
            try:
                await self._state.tools.api.request(
                    "PATCH", path, status_patch(pod, status), content_type=STRATEGIC_MERGE
                )
                self._written = status
                return
            except TROUBLE as error:
                if isinstance(error, ApiError) and error.code in (404, 409, 422):
                    # Gone, or the name has another pod by now; 422 is a fault of ours that no retry mends.
                    _log.log(
                        logging.ERROR if error.code == 422 else logging.INFO,
                        "status of pod %s/%s is refused: %s",
                        namespace_of(pod),
                        name_of(pod),
                        error,
                    )
                    self._written = status
                    return
                _log.info("status of pod %s waits: %s", name_of(pod), str(error) or type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _status(self) -> Manifest:
        state = self._state
        status = pod_status(
            state.pod,
            state.record,
            self._conditions,
            time.time(),
            failure=self.failure,
            volumes_ready=self._volumes_ready(),
        )
        self._conditions = by_type(status["conditions"])
        return status
