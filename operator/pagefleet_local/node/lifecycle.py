"""The course of a pod's containers: volumes, init containers one after the other, then all others together."""

import asyncio
import time
from collections.abc import Callable

from pagefleet_local.node.container import Container
from pagefleet_local.node.mounting import PodVolumes
from pagefleet_local.node.pod_state import PodState
from pagefleet_local.node.pods import (
    Manifest,
    containers,
    grace_seconds,
    init_containers,
    is_sidecar,
    restart_policy,
)


class Lifecycle:
    def __init__(self, state: PodState) -> None:
        self._state = state
        self._volumes = PodVolumes(state)
        self._mains = [Container(state, c["name"], _policy(c, state.pod)) for c in containers(state.pod)]
        self._inits = {
            c["name"]: Container(state, c["name"], _init_policy(c, state.pod)) for c in init_containers(state.pod)
        }
        # What has run before had its volumes, and they are still there.
        self._has_run = any(main.record.num_starts for main in self._mains)
        self.volumes_ready = self._has_run

    async def live(self) -> None:
        """Run the containers to their end. Cancelled, it leaves the processes to `stop`, or to the next node."""
        if not self.volumes_ready:
            await self._volumes.prepare()
            self.volumes_ready = True
            self._state.changed.set()
        async with asyncio.TaskGroup() as beside:
            tasks = [beside.create_task(self._volumes.keep_up())]
            if await self._initialize(beside, tasks):
                async with asyncio.TaskGroup() as mains:
                    for container in self._mains:
                        mains.create_task(container.supervise())
            for task in tasks:
                task.cancel()
        until = time.monotonic() + grace_seconds(self._state.pod)
        await self._stop_inits(lambda: until - time.monotonic())

    async def stop(self, seconds_left: Callable[[], float]) -> None:
        """End every process: the sidecars after the others, the last one first."""
        async with asyncio.TaskGroup() as stopping:
            for container in self._mains:
                stopping.create_task(container.stop(seconds_left))
        await self._stop_inits(seconds_left)

    def let_go(self) -> None:
        for container in [*self._mains, *self._inits.values()]:
            container.let_go()

    async def _initialize(self, beside: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]) -> bool:
        """Run the init containers; return whether the others may start."""
        for manifest in init_containers(self._state.pod):
            container = self._inits[manifest["name"]]
            if is_sidecar(manifest):
                tasks.append(beside.create_task(_kept_running(container)))
                if not self._has_run:
                    await container.has_started()
            elif (await container.supervise()).exit_code:
                return False
        return True

    async def _stop_inits(self, seconds_left: Callable[[], float]) -> None:
        for container in reversed(self._inits.values()):
            await container.stop(seconds_left)


async def _kept_running(container: Container) -> None:
    await container.supervise()


def _policy(container: Manifest, pod: Manifest) -> str:
    return str(container.get("restartPolicy") or restart_policy(pod))


def _init_policy(container: Manifest, pod: Manifest) -> str:
    if is_sidecar(container):
        return "Always"
    return "Never" if restart_policy(pod) == "Never" else "OnFailure"
