"""Compares what the watches told with what the cluster says: at the start, now and then, and after a watch was cut.

A watch that begins anew lists what is there and can't say what went meanwhile, nor, where nothing is left, that it
listed at all; a watch can also go deaf, or its right be taken away while it is open. Each of these is found here and
nowhere else.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pagefleet_operator.cache import Cache
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.faults import Fault, RefusedFault
from pagefleet_operator.handlers import Watches, selector_of
from pagefleet_operator.kinds import ResourceKind, watched

logger = logging.getLogger(__name__)

_SHORTEST_LISTS_SECONDS = 20.0
_SOON_SECONDS = 1.0
_DEAF_SECONDS = 30.0


@dataclass(slots=True)
class Truth:
    """Owns what is known to be wrong with the watches, in words; empty where nothing is."""

    api: ClusterApi
    cache: Cache
    watches: Watches
    namespaces: tuple[str | None, ...]  # None is all of them
    resync_seconds: float
    clock: Callable[[], float] = time.monotonic
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    refused: str = ""  # rights that are missing
    deaf: str = ""  # objects that no watch has told of
    _unseen: dict[str, float] = field(default_factory=dict)
    _asked_at: float = float("-inf")
    _swept_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._swept_at = self.clock()

    @property
    def _kinds(self) -> tuple[ResourceKind, ...]:
        return watched(cluster_wide=None in self.namespaces)

    async def run(self) -> None:
        """Until cancelled."""
        await self._until_filled()
        while True:
            await asyncio.sleep(_SOON_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Compare where there is a reason to."""
        all_went = await self._ask_shortest_lists()
        due = self.clock() - self._swept_at > (_DEAF_SECONDS if self._unseen else self.resync_seconds)
        if due or all_went or self.watches.was_listed_again:
            self.watches.was_listed_again = False
            await self._sweep()
            self._swept_at = self.clock()

    async def _until_filled(self) -> None:
        """The watches have told of everything that was there when they began."""
        missing: set[str] | None = None
        while True:
            try:
                if missing is None:
                    missing = await self._all_uids()
            except Fault as fault:
                logger.warning("the first list failed: %s", fault.message)
                await asyncio.sleep(_SOON_SECONDS)
                continue
            give_up = self.clock() + 5.0
            while missing and self.clock() < give_up:
                missing = {uid for uid in missing if not self.cache.knows(uid)}
                await asyncio.sleep(0.05)
            if not missing:
                break
            missing = None  # some of it may be gone by now
        self.watches.was_listed_again = False
        self._swept_at = self.clock()
        self.filled.set()
        logger.info("all watches are filled", extra={"services": len(self.cache.service_keys())})

    async def _sweep(self) -> None:
        unseen: set[str] = set()
        try:
            for kind in self._kinds:
                for namespace in self.namespaces:
                    unseen |= await self._compare(kind, namespace)
        except Fault as fault:
            logger.warning("what the watches told can't be checked: %s", fault.message)
            return
        now = self.clock()
        self._unseen = {uid: self._unseen.get(uid, now) for uid in unseen}
        late = [uid for uid, since in self._unseen.items() if now - since > _DEAF_SECONDS]
        self.deaf = f"{len(late)} objects are in the cluster and no watch has told of them" if late else ""

    async def _compare(self, kind: ResourceKind, namespace: str | None) -> set[str]:
        """Drop what is gone, and return what the watches should have told of."""
        before = self.cache.uids(kind, namespace)
        there = await self._uids(kind, namespace)
        for uid in before - there:
            if self.cache.knows(uid):
                logger.info("found gone without a word of the watch", extra={"kind": kind.kind, "uid": uid})
                self.watches.lose(uid)
        return {uid for uid in there if not self.cache.knows(uid)}

    async def _all_uids(self) -> set[str]:
        found: set[str] = set()
        for kind in self._kinds:
            for namespace in self.namespaces:
                found |= await self._uids(kind, namespace)
        return found

    async def _uids(self, kind: ResourceKind, namespace: str | None) -> set[str]:
        pages = self.api.pages(kind.path(namespace), _query(kind), only_metadata=True)
        return {item["metadata"]["uid"] async for page in pages for item in page}

    async def _ask_shortest_lists(self) -> bool:
        """Ask for one object of each kind, now and then, and return whether a kind has none of which some are known.

        A right that is taken away shows in no other way before an open watch ends, and a new list that is empty calls
        no handler.
        """
        if self.clock() - self._asked_at < _SHORTEST_LISTS_SECONDS:
            return False
        self._asked_at = self.clock()
        refused, all_went = "", False
        for kind in self._kinds:
            for namespace in self.namespaces:
                try:
                    found = await self.api.get(kind.path(namespace), {"limit": "1"} | _query(kind))
                except RefusedFault as fault:
                    refused = fault.message
                except Fault:
                    continue  # the watches themselves and the canary see an API that is out of reach
                else:
                    all_went = all_went or (not found.get("items") and bool(self.cache.uids(kind, namespace)))
        if refused and refused != self.refused:
            logger.error("a right is missing; install the chart's roles again: %s", refused)
        self.refused = refused
        return all_went


def _query(kind: ResourceKind) -> dict[str, str]:
    selector = selector_of(kind)
    return {"labelSelector": selector} if selector else {}
