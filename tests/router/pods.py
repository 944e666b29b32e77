"""Pods as the API shows them, and an API that tells what a test puts into it."""

import asyncio
from collections.abc import Callable
from typing import Any

from pagefleet_contract.names import ANNOTATION_DRAIN
from pagefleet_router.kubernetes_api import ApiFault, Event, Listed

Pod = dict[str, Any]


def pod(
    name: str,
    address: str | None = "10.0.0.1",
    *,
    ready: bool = True,
    deleting: bool = False,
    drain: bool = False,
    phase: str = "Running",
) -> Pod:
    metadata: Pod = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    if drain:
        metadata["annotations"] = {ANNOTATION_DRAIN: ""}
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True" if ready else "False"}]
    status: Pod = {"phase": phase, "conditions": conditions}
    if address is not None:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return {"metadata": metadata, "status": status}


class ScriptedPods:
    """Answers a list with what it is told, in turn, and feeds one watch after the other."""

    def __init__(self) -> None:
        self.lists: asyncio.Queue[list[Pod] | ApiFault] = asyncio.Queue()
        # An event, a fault, or None for a watch that comes to its end.
        self.feed: asyncio.Queue[Event | ApiFault | None] = asyncio.Queue()
        self.watched_from: list[str] = []
        self.num_connects = 0
        self.num_closed = 0
        self.refused: list[ApiFault] = []

    async def connect(self) -> "ScriptedPods":
        self.num_connects += 1
        if self.refused:
            raise self.refused.pop(0)
        return self

    async def list(self) -> Listed:
        told = await self.lists.get()
        if isinstance(told, ApiFault):
            raise told
        return Listed(told, "100")

    async def watch(self, resource_version: str, tell: Callable[[Event], None]) -> None:
        self.watched_from.append(resource_version)
        while (told := await self.feed.get()) is not None:
            if isinstance(told, ApiFault):
                raise told
            tell(told)

    async def close(self) -> None:
        self.num_closed += 1

    def event(self, kind: str, pod: Pod, version: str) -> None:
        pod["metadata"]["resourceVersion"] = version
        self.feed.put_nowait(Event(kind, pod))
