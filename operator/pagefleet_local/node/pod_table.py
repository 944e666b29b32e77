"""All pods of the node: follows what is bound to it, gives each a worker, and takes up what an earlier node left."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.node.api import Changed, Gone, Listed, watch
from pagefleet_local.node.devices import DevicesUsedUp
from pagefleet_local.node.folders import pod_folder, pod_folders
from pagefleet_local.node.leftovers import end_folder, end_strays, running_processes
from pagefleet_local.node.log_server import FoundLog, NoLog
from pagefleet_local.node.pod import PodWorker
from pagefleet_local.node.pod_state import PodState, Tools
from pagefleet_local.node.pods import Manifest, all_containers, grace_seconds, name_of, namespace_of, uid_of
from pagefleet_local.node.records import PodRecord, Running, Waiting

_AFTER_FAULT_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass
class _Entry:
    pod: Manifest
    state: PodState
    refused: str | None  # why it can't run here, beside what its manifest says
    worker: PodWorker
    task: asyncio.Task[None]
    gone: bool = False


class PodTable:
    """`changed` is called when a pod has come, changed or gone."""

    def __init__(self, tools: Tools, state: Path, changed: Callable[[], None]) -> None:
        self._tools = tools
        self._folder = state
        self._changed = changed
        self._entries: dict[str, _Entry] = {}
        self._first = True

    def manifests(self) -> list[Manifest]:
        return [entry.pod for entry in self._entries.values() if not entry.gone]

    async def follow(self) -> None:
        """Follow the pods that are bound to this node, for ever."""
        asked = {"fieldSelector": f"spec.nodeName={self._tools.node}"}
        async with aclosing(watch(self._tools.api, "/api/v1/pods", asked)) as events:
            async for event in events:
                match event:
                    case Listed(pods):
                        await self._listed(pods)
                    case Changed(pod):
                        self._seen(pod)
                    case Gone(pod):
                        self._is_gone(pod)
                self._changed()

    async def leave(self) -> None:
        """Stop caring for the pods; their processes go on."""
        for entry in self._entries.values():
            entry.task.cancel()
        await asyncio.gather(*(entry.task for entry in self._entries.values()), return_exceptions=True)
        for entry in self._entries.values():
            entry.worker.let_go()

    def find_log(self, namespace: str, pod: str, container: str, previous: bool) -> FoundLog:
        """Return the log of a container, or of its run before. Raises NoLog."""
        states = [e.state for e in self._entries.values() if (namespace_of(e.pod), name_of(e.pod)) == (namespace, pod)]
        if not states:
            raise NoLog(404, f'pod "{namespace}/{pod}" is not on this node')
        return find_log(states[-1], container, previous)

    # --- what the API server says

    async def _listed(self, pods: list[Manifest]) -> None:
        there = {uid_of(pod) for pod in pods}
        if self._first:
            self._first = False
            await self._take_up(there)
        for uid in self._entries.keys() - there:
            self._is_gone(self._entries[uid].pod)
        for pod in pods:
            self._seen(pod)

    def _seen(self, pod: Manifest) -> None:
        entry = self._entries.get(uid_of(pod))
        if entry is None:
            self._begin(pod)
        elif not entry.gone:
            entry.pod = pod
            entry.worker.update(pod)

    def _is_gone(self, pod: Manifest) -> None:
        entry = self._entries.get(uid_of(pod))
        if entry is None:
            return
        entry.gone = True
        if entry.task.done():
            del self._entries[uid_of(pod)]
        else:
            entry.worker.gone(pod)

    async def _take_up(self, there: set[str]) -> None:
        """Keep addresses and GPUs of pods that are still there; end what runs of others."""
        kept: set[int] = set()
        for folder in list(pod_folders(self._folder)):
            record = folder.load()
            if record and record.uid in there:
                self._tools.addresses.keep([record.address])
                self._tools.devices.keep(record.devices)
                kept |= set(running_processes(record))
            else:
                _log.info("ending what runs of %s, which is gone from the API", folder.path.name)
                await asyncio.to_thread(end_folder, folder)
        for pid in end_strays(self._folder, frozenset(kept)):
            _log.warning("ended process %d, which belonged to no pod", pid)

    # --- workers

    def _begin(self, pod: Manifest) -> None:
        folder = pod_folder(self._folder, namespace_of(pod), name_of(pod), uid_of(pod))
        record, refused = folder.load(), None
        if record is None:
            record, refused = self._new_record(pod)
        state = PodState(pod, record, folder, self._tools)
        worker = PodWorker(state, refused)
        task = asyncio.create_task(self._keep(uid_of(pod)))
        self._entries[uid_of(pod)] = _Entry(pod, state, refused, worker, task)

    def _new_record(self, pod: Manifest) -> tuple[PodRecord, str | None]:
        refused: str | None = None
        devices: dict[str, tuple[str, ...]] = {}
        try:
            devices = self._tools.devices.take(pod)
        except DevicesUsedUp as error:
            refused = str(error)
        record = PodRecord(
            uid=uid_of(pod),
            namespace=namespace_of(pod),
            name=name_of(pod),
            # A status that names another address can't be written.
            address=self._tools.addresses.take((pod.get("status") or {}).get("podIP")),
            grace_seconds=grace_seconds(pod),
            seen_at=time.time(),
            devices=devices,
        )
        return record, refused

    async def _keep(self, uid: str) -> None:
        """Let the worker run to its end; one that fails by a fault of ours is replaced, and its processes adopted."""
        entry = self._entries[uid]
        while True:
            try:
                await entry.worker.run()
                break
            except Exception:
                _log.exception("the worker of pod %s/%s failed", namespace_of(entry.pod), name_of(entry.pod))
            await asyncio.sleep(_AFTER_FAULT_SECONDS)
            entry.worker.let_go()
            entry.worker = PodWorker(entry.state, entry.refused)
            if entry.gone:
                entry.worker.gone(entry.pod)
        entry.worker.clear_up()
        if entry.gone:
            del self._entries[uid]


def find_log(state: PodState, container: str, previous: bool) -> FoundLog:
    if container not in [each["name"] for each in all_containers(state.pod)]:
        raise NoLog(400, f'container "{container}" is not in pod "{name_of(state.pod)}"')
    record = state.record.container(container)
    crashed = isinstance(record.state, Waiting) and record.last is not None
    start = record.num_starts - (2 if previous and not crashed else 1)
    path = state.folder.log(container, start)
    if start < 0 or not path.exists():
        if previous:
            raise NoLog(400, f'previous terminated container "{container}" in pod "{name_of(state.pod)}" not found')
        reason = record.state.reason if isinstance(record.state, Waiting) else "no log"
        raise NoLog(400, f'container "{container}" in pod "{name_of(state.pod)}" is waiting to start: {reason}')

    def goes_on() -> bool:
        now = state.record.container(container)
        return isinstance(now.state, Running) and now.num_starts == start + 1

    return FoundLog(path, goes_on)
