"""One look at one service: observe, plan, apply, status, events. Whatever goes wrong stays with that service."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.actions import Announcement, Plan
from pagefleet_operator.apply import Applier, Outdated, Report
from pagefleet_operator.cache import Cache, ServiceKey
from pagefleet_operator.events import Announcer
from pagefleet_operator.failures import with_failure
from pagefleet_operator.faults import Fault, NotLeading, RefusedFault
from pagefleet_operator.model_facts import Pending
from pagefleet_operator.observe import Observer, waits
from pagefleet_operator.observed import Observed
from pagefleet_operator.workers import Done, Failed, Gone, Result

logger = logging.getLogger(__name__)

Planner = Callable[[Observed, OperatorSettings, bytes, float], Plan]
ReconcileResult = Literal["done", "waiting", "temporary", "refused", "bug", "gone"]

# A temporary fault is shown to people only when it has come this often in a row.
_SHOWN_FROM = 3
_WAITING_PODS_SECONDS = 10.0
_LOOK_UP_SECONDS = 30.0
_AFTER_WRITE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Everything that one look needs. `fault_counts` holds how often in a row each service has failed, `status_times`
    when its status was last written."""

    cache: Cache
    observer: Observer
    plan: Planner
    applier: Applier
    announcer: Announcer
    settings: OperatorSettings
    root_key: bytes
    on_result: Callable[[ServiceKey, ReconcileResult, float], None]
    on_status: Callable[[ServiceKey, dict[str, Any]], None]
    fault_counts: dict[ServiceKey, int]
    status_times: dict[ServiceKey, float]

    async def __call__(self, key: ServiceKey) -> Result:
        """Raises NotLeading and nothing else."""
        started = time.monotonic()
        said, result = await self._look(key)
        self.on_result(key, said, time.monotonic() - started)
        return result

    async def _look(self, key: ServiceKey) -> tuple[ReconcileResult, Result]:
        try:
            return await self._reconcile(key)
        except Outdated as reason:
            logger.info("nothing more to do: %s", reason, extra=_extra(key))
            return "gone", self._end(key)
        except Fault as fault:
            logger.warning("not observed: %s", fault.message, extra=_extra(key))
            return "temporary", Failed(fault.retry_after_seconds or 0.0)
        except (NotLeading, asyncio.CancelledError):
            raise
        except Exception:
            # A bug in one service's handling must not stop the others'. It is logged with its place, and counted.
            logger.exception("this is a bug", extra=_extra(key))
            return "bug", Failed()

    async def _reconcile(self, key: ServiceKey) -> tuple[ReconcileResult, Result]:
        observed = await self.observer.observe(key)
        if observed is None:
            return "gone", self._end(key)
        if isinstance(observed, Pending):
            return "waiting", Done(_LOOK_UP_SECONDS)
        self.on_status(key, dict(observed.service.status))
        if observed.service.deleting:
            # Its children go with it; making them anew would race with the garbage collector.
            return "done", Done(self.settings.resync_seconds)
        observed = replace(observed, status_written_seconds=self.status_times.get(key))
        plan = self.plan(observed, self.settings, self.root_key, time.time())
        report = await self.applier.carry_out(key, plan.actions, observed.children)
        self._count(key, report)
        shown = self._fault_to_show(key, report)
        wrote = await self._write_status(key, observed, plan, shown)
        await self._announce(key, plan, shown)
        if report.faults:
            said: ReconcileResult = "refused" if isinstance(shown, RefusedFault) else "temporary"
            return said, Failed(max(fault.retry_after_seconds or 0.0 for fault in report.faults))
        return "done", Done(self._again(key, plan, report, wrote))

    async def _write_status(self, key: ServiceKey, observed: Observed, plan: Plan, shown: Fault | None) -> bool:
        live = self.cache.service(key)
        if live is None or (plan.status is None and shown is None):
            return False
        status: dict[str, Any] = dict(observed.service.status if plan.status is None else plan.status)
        if shown is not None:
            status = with_failure(
                status, observed.service.status, shown.reason, shown.message, observed.service.generation, _now()
            )
        wrote = await self.applier.write_status(key, live, status)
        if wrote:
            self.status_times[key] = time.time()
            self.on_status(key, status)
        return wrote

    async def _announce(self, key: ServiceKey, plan: Plan, shown: Fault | None) -> None:
        announcements = plan.announcements
        if shown is not None:
            announcements = (*announcements, Announcement("Warning", shown.reason, shown.message))
        for announcement in announcements:
            await self.announcer.announce(key, announcement)

    def _count(self, key: ServiceKey, report: Report) -> None:
        if report.faults:
            self.fault_counts[key] = self.fault_counts.get(key, 0) + 1
        else:
            self.fault_counts.pop(key, None)

    def _fault_to_show(self, key: ServiceKey, report: Report) -> Fault | None:
        refused = [fault for fault in report.faults if isinstance(fault, RefusedFault)]
        if refused:
            return refused[0]
        return report.faults[0] if report.faults and self.fault_counts[key] >= _SHOWN_FROM else None

    def _again(self, key: ServiceKey, plan: Plan, report: Report, wrote: bool) -> float:
        """Return when to look again. After a write soon: our own writes are no news to the cache."""
        if report.num_done or wrote:
            return _AFTER_WRITE_SECONDS
        # Not all at the same time.
        waits_for = [self.settings.resync_seconds * random.uniform(0.9, 1.1)]
        if plan.again_in_seconds is not None:
            waits_for.append(plan.again_in_seconds)
        if any(_on_its_way(pod) for pod in self.cache.pods(key)):
            waits_for.append(_WAITING_PODS_SECONDS)
        return min(waits_for)

    def _end(self, key: ServiceKey) -> Gone:
        self.applier.forget(key)
        self.fault_counts.pop(key, None)
        self.status_times.pop(key, None)
        return Gone()


def _on_its_way(pod: dict[str, Any]) -> bool:
    """Whether a pod may soon have events to tell, which nothing brings to us."""
    return waits(pod, float("inf"))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _extra(key: ServiceKey) -> dict[str, str]:
    return {"namespace": key.namespace, "service": key.name, "uid": key.uid}
