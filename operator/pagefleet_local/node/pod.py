"""One pod on this node, from its first sight to its removal from the API."""

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from pagefleet_local.node.admission import REASON, refusal
from pagefleet_local.node.api import TROUBLE, ApiError
from pagefleet_local.node.lifecycle import Lifecycle
from pagefleet_local.node.pod_state import PodState
from pagefleet_local.node.pods import (
    Manifest,
    all_containers,
    grace_seconds,
    is_finished,
    is_terminating,
    name_of,
    namespace_of,
    uid_of,
)
from pagefleet_local.node.records import Waiting
from pagefleet_local.node.status import Failure
from pagefleet_local.node.status_writer import StatusWriter

_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class PodWorker:
    """`update` and `gone` tell it what the API server says of the pod; `run` does the rest. `refused` is why the node
    has no room for the pod, whatever its manifest says."""

    def __init__(self, state: PodState, refused: str | None) -> None:
        self._state = state
        self._refused = refused
        self._lifecycle = Lifecycle(state)
        self._status = StatusWriter(state, lambda: self._lifecycle.volumes_ready)
        self._ending = asyncio.Event()
        self._gone = False
        self._end_by = float("inf")
        self.update(state.pod)

    def update(self, pod: Manifest) -> None:
        self._state.update(pod)
        if is_terminating(pod):
            self._end_within(grace_seconds(pod))

    def gone(self, pod: Manifest) -> None:
        """The API server has no such pod any more; `pod` is what it said last."""
        self._gone = True
        # Deleted with no grace at all it still gets a second, as from a kubelet.
        self._end_within(max(grace_seconds(pod), 1.0))

    def let_go(self) -> None:
        """The node ends: the processes go on."""
        self._lifecycle.let_go()

    async def run(self) -> None:
        """Run the pod until nothing of it is left, here or in the API."""
        writer = asyncio.create_task(self._status.run())
        try:
            await self._live()
            await self._ending.wait()
            await self._lifecycle.stop(self._seconds_left)
            self._state.give_devices_back()
            await _cancelled(writer)
            await self._status.write()
            await self._remove_from_api()
        finally:
            await _cancelled(writer)

    def clear_up(self) -> None:
        """Remove what the node keeps of a pod that has ended."""
        state = self._state
        state.tools.objects.let_go(uid_of(state.pod))
        state.tools.addresses.give_back(state.record.address)
        state.folder.remove()

    async def _live(self) -> None:
        """Let the pod run until it has finished, must end, or has had its time."""
        if is_finished(self._state.pod):
            return
        if self._refused:
            await self._fail(REASON, f"Pod was rejected: {self._refused}")
            return
        unrunnable = refusal(self._state.pod)
        if unrunnable:
            await self._hold(unrunnable)
            return
        life = asyncio.create_task(self._lifecycle.live())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait([life, ending], timeout=self._active_seconds(), return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
                self._state.give_devices_back()
            elif not ending.done():
                await _cancelled(life)
                until = time.monotonic() + grace_seconds(self._state.pod)
                await self._lifecycle.stop(lambda: until - time.monotonic())
                self._state.give_devices_back()
                await self._fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        finally:
            await _cancelled(life, ending)

    def _active_seconds(self) -> float | None:
        seconds = self._state.pod["spec"].get("activeDeadlineSeconds")
        return None if seconds is None else max(self._state.record.seen_at + float(seconds) - time.time(), 0)

    async def _fail(self, reason: str, message: str) -> None:
        self._status.failure = Failure(reason, message)
        self._state.changed.set()
        await self._state.post(reason, message, warning=True)

    async def _hold(self, message: str) -> None:
        """Let the pod wait for somebody to change it. As Failed it would be replaced by its equal, without end."""
        for container in all_containers(self._state.pod):
            record = self._state.record.container(container["name"])
            self._state.save(replace(record, state=Waiting(REASON, message)))
        await self._state.post(REASON, message, warning=True)

    def _end_within(self, seconds: float) -> None:
        self._end_by = min(self._end_by, time.monotonic() + seconds)
        self._ending.set()

    def _seconds_left(self) -> float:
        return self._end_by - time.monotonic()

    async def _remove_from_api(self) -> None:
        pod = self._state.pod
        path = f"/api/v1/namespaces/{namespace_of(pod)}/pods/{name_of(pod)}"
        body: Manifest = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(pod)}}
        while not self._gone:
            try:
                await self._state.tools.api.request("DELETE", path, body)
                return
            except TROUBLE as error:
                if isinstance(error, ApiError) and error.code in (404, 409):
                    return
                _log.info("pod %s waits for its removal: %s", name_of(pod), str(error) or type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
