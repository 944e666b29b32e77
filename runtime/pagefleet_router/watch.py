"""Keeps the fleet's replicas as the API tells them, for ever; while the API is away, those last known stay."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from pagefleet_router.fleet import Fleet
from pagefleet_router.kubernetes_api import ApiFault, Event, Listed
from pagefleet_router.replicas import PodList

_FIRST_WAIT_SECONDS, _MOST_WAIT_SECONDS = 0.2, 5.0
# What the API asks for is kept, within reason: a drain mark that is seen late costs a retry per request.
_MOST_ASKED_SECONDS = 30.0

logger = logging.getLogger(__name__)


def wait_seconds(faults_in_a_row: int, fault: ApiFault, jitter: float) -> float:
    """Return how long to wait after a fault; `jitter` from 0 to 1 spreads the routers of many services."""
    if fault.is_gone:
        return 0.0 if faults_in_a_row == 1 else _FIRST_WAIT_SECONDS
    own = min(_FIRST_WAIT_SECONDS * 2.0 ** min(faults_in_a_row - 1, 10), _MOST_WAIT_SECONDS) * (0.5 + jitter / 2)
    return max(own, min(fault.retry_after_seconds or 0.0, _MOST_ASKED_SECONDS))


class Pods(Protocol):
    """The pods of a service, as an API tells them; each method raises ApiFault."""

    async def list(self) -> Listed: ...

    async def watch(self, resource_version: str, tell: Callable[[Event], None]) -> None: ...

    async def close(self) -> None: ...


class PodWatch:
    """Lists, watches, and begins again after every fault, with credentials that are read anew."""

    def __init__(self, connect: Callable[[], Awaitable[Pods]], fleet: Fleet) -> None:
        self._connect = connect
        self._fleet = fleet
        self._faults_in_a_row = 0

    async def run(self) -> None:
        """Never returns; a bug of ours raises."""
        while True:
            try:
                await self._follow()
            except ApiFault as fault:
                self._faults_in_a_row += 1
                seconds = wait_seconds(self._faults_in_a_row, fault, random.random())
                self._report(fault)
                await asyncio.sleep(seconds)

    async def _follow(self) -> None:
        """Raises ApiFault, sooner or later."""
        api = await self._connect()
        try:
            listed = await api.list()
            followed = _Followed(PodList(listed.pods), listed.resource_version, self._fleet)
            followed.show()
            self._heard()
            while True:
                await api.watch(followed.resource_version, lambda event: self._take(followed, event))
                self._heard()
        finally:
            await api.close()

    def _take(self, followed: "_Followed", event: Event) -> None:
        followed.take(event)
        self._heard()

    def _heard(self) -> None:
        if self._faults_in_a_row:
            logger.info("the Kubernetes API answers again")
        self._faults_in_a_row = 0
        self._fleet.hear()

    def _report(self, fault: ApiFault) -> None:
        """Say it when it begins; that a history has been shortened or a watch was cut is nobody's worry."""
        known = "the replicas last known go on being used" if self._fleet.known else "not ready until the pods are read"
        level = logging.INFO if fault.is_gone else logging.WARNING
        if self._faults_in_a_row in (1, 5) or self._faults_in_a_row % 60 == 0:
            logger.log(level, "%s; %s", fault, known)


class _Followed:
    """The pods as followed so far, shown to the fleet."""

    def __init__(self, pods: PodList, resource_version: str, fleet: Fleet) -> None:
        self.resource_version = resource_version
        self._pods = pods
        self._fleet = fleet

    def take(self, event: Event) -> None:
        self.resource_version = event.resource_version
        if event.kind != "BOOKMARK":
            self._pods.apply(event.kind, event.pod)
            self.show()

    def show(self) -> None:
        self._fleet.see(self._pods.replicas())
