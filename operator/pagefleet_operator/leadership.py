"""Holds the Lease and watches it. Being its holder is the right to write; the watch's echo shows that the API, watches
and the event loop are alive."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pagefleet_operator.cluster_api import MERGE, ClusterApi
from pagefleet_operator.faults import AbsentFault, Fault, NotLeading
from pagefleet_operator.kinds import LEASE
from pagefleet_operator.lease import LeaseRecord, Terms, next_move, patch_for, record_of, release_patch

logger = logging.getLogger(__name__)


class Fence:
    """Whether this operator may write, now. Asked before every write."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = float("-inf")

    def open_until(self, moment: float) -> None:
        self._until = moment

    def close(self) -> None:
        self._until = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._clock() < self._until

    def check(self) -> None:
        """Raises NotLeading."""
        if not self.is_open:
            raise NotLeading("the Lease isn't held for certain; another operator may have taken over")


class Leadership:
    """Keeps the Lease `name` in `namespace`, or waits for it."""

    def __init__(self, api: ClusterApi, namespace: str, name: str, terms: Terms, fence: Fence) -> None:
        self._api = api
        self._path = LEASE.path(namespace, name)
        self._list_path = LEASE.path(namespace)
        self._name = name
        self._terms = terms
        self._fence = fence
        self._record: LeaseRecord | None = None  # what a renewal is based on; None where it must be read first
        self._last_known: LeaseRecord | None = None
        self._changed_at = time.monotonic()
        self._last_echo = time.monotonic()
        self._seen = asyncio.Event()
        self.acquired = asyncio.Event()
        self.fault = "the Lease hasn't been read yet"

    @property
    def echo_age_seconds(self) -> float:
        return time.monotonic() - self._last_echo

    @property
    def echo_is_missing(self) -> bool:
        """Whether three renewals in a row, with the time a request may take, have not come back by the watch."""
        return self.echo_age_seconds > 4 * self._terms.interval_seconds

    async def keep(self) -> None:
        """Acquire and renew until cancelled. Raises NotLeading when the Lease was held and is lost."""
        while True:
            self._seen.clear()
            try:
                await self._step()
                self.fault = ""
            except AbsentFault as fault:
                self._record = None
                self._say(f"{fault.message}; the chart renders this Lease, install it again")
            except Fault as fault:
                self._record = None
                self._say(fault.message)
            if self.acquired.is_set():
                self._fence.check()
                # A renewal that failed is tried again while there is time for it.
                await asyncio.sleep(
                    min(1.0, self._terms.interval_seconds) if self.fault else self._terms.interval_seconds
                )
            else:
                await self._wait_for_news()

    async def _step(self) -> None:
        if self._record is None:
            self._take_note(record_of(await self._api.get(self._path)))
        record = self._record
        assert record is not None
        started = time.monotonic()
        move = next_move(record, self._terms, started - self._changed_at)
        if move == "wait":
            self._lose_if_held(record)
            self._record = None
            return
        patch = patch_for(move, record, self._terms, datetime.now(UTC))
        self._take_note(record_of(await self._api.request("PATCH", self._path, body=patch, content_type=MERGE)))
        self._fence.open_until(started + self._terms.trusted_seconds)
        if not self.acquired.is_set():
            logger.info("leading", extra={"lease": self._name, "holder": self._terms.holder})
            self.acquired.set()

    def _lose_if_held(self, record: LeaseRecord) -> None:
        if self.acquired.is_set():
            self._fence.close()
            raise NotLeading(f"{record.holder} holds the Lease {self._name} now")

    def _take_note(self, record: LeaseRecord) -> None:
        if record != self._last_known:
            self._changed_at = time.monotonic()
        self._last_known = record
        self._record = record

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(self._terms.interval_seconds):
                await self._seen.wait()
        except TimeoutError:
            return

    async def release(self) -> None:
        """Let the next operator in at once, where this one led. Its end isn't held up by a fault."""
        was_leading = self._fence.is_open
        self._fence.close()
        if not was_leading:
            return
        try:
            record = record_of(await self._api.get(self._path))
            if record.holder == self._terms.holder:
                await self._api.request("PATCH", self._path, body=release_patch(record), content_type=MERGE)
        except Fault as fault:
            logger.warning("the Lease was not released: %s", fault.message)

    async def watch(self) -> None:
        """Watch the one object until cancelled. A watch that says nothing for two renewals is opened again."""
        query = {"fieldSelector": f"metadata.name={self._name}", "allowWatchBookmarks": "false"}
        while True:
            try:
                async with self._api.watch(self._list_path, query) as events:
                    while True:
                        async with asyncio.timeout(2 * self._terms.interval_seconds):
                            event = await anext(events, None)
                        if event is None:
                            break
                        self._last_echo = time.monotonic()
                        if not (event["object"].get("spec") or {}).get("holderIdentity"):
                            self._seen.set()
            except TimeoutError:
                continue
            except Fault as fault:
                self._say(fault.message)
            await asyncio.sleep(min(1.0, self._terms.interval_seconds))

    def _say(self, fault: str) -> None:
        if fault != self.fault:
            logger.warning("the Lease is out of reach: %s", fault)
        self.fault = fault
