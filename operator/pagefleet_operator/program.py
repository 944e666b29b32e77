"""The operator put together: what runs beside what, and what its end means."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.apply import Applier
from pagefleet_operator.cache import Cache, ReplicaAddress, ServiceKey
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.discovery import Discovery
from pagefleet_operator.events import Announcer, PodEvents
from pagefleet_operator.figures import FiguresBook, FiguresPace
from pagefleet_operator.handlers import Watches, run_kopf, see_that_watches_run
from pagefleet_operator.health import Health, HealthServer
from pagefleet_operator.leadership import Fence, Leadership
from pagefleet_operator.lease import Terms
from pagefleet_operator.loop_lag import measure_lag
from pagefleet_operator.metrics import Metrics
from pagefleet_operator.model_facts import ModelFactsBook
from pagefleet_operator.observe import Observer
from pagefleet_operator.reconcile import Planner, Reconciler, ReconcileResult
from pagefleet_operator.truth import Truth
from pagefleet_operator.work_queue import Pace
from pagefleet_operator.workers import Workers

logger = logging.getLogger(__name__)

_API_PATIENCE_SECONDS = 10.0
_FIGURES_TICK_SECONDS = 0.5
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who and where this operator is."""

    pod_name: str
    namespace: str


class TaskEnded(Exception):
    """Something that runs for ever has ended by itself; the process is to be restarted."""


class OperatorProgram:
    """Owns every part, from start to end."""

    def __init__(
        self,
        settings: OperatorSettings,
        root_key: bytes,
        identity: Identity,
        plan: Planner,
        api: ClusterApi,
        lease_api: ClusterApi,
    ) -> None:
        self._settings = settings
        self._lease_api, self._api = lease_api, api
        self.metrics = Metrics()
        self._fence = Fence()
        self._cache = Cache()
        self._workers = Workers(Pace(retry_longest=settings.retry_seconds_max), settings.workers)
        self._watches = Watches(self._cache, self._workers.add, self._forget)
        self._figures = FiguresBook(
            FiguresPace(settings.figures_seconds, settings.figures_timeout_seconds), root_key, self._on_figures
        )
        self._models = ModelFactsBook(settings.hub_url, self._workers.add)
        self._discovery = Discovery(api, self._look_at_all)
        self._leadership = Leadership(
            lease_api,
            identity.namespace,
            settings.lease_name,
            Terms(identity.pod_name, settings.lease_seconds),
            self._fence,
        )
        self._namespaces = namespaces_of(settings, identity.namespace)
        self._truth = Truth(api, self._cache, self._watches, self._namespaces or (None,), settings.resync_seconds)
        self._reconcile = Reconciler(
            cache=self._cache,
            observer=Observer(
                api,
                self._cache,
                self._figures,
                self._models,
                PodEvents(api),
                lambda: self._discovery.optional,
                settings,
            ),
            plan=plan,
            applier=Applier(api, self._cache, self._fence, self._figures, self._on_write),
            announcer=Announcer(api, self._fence),
            settings=settings,
            root_key=root_key,
            on_result=self._on_result,
            on_status=self.metrics.take_status,
            fault_counts={},
            status_times={},
        )

    async def run(self, listener: socket.socket) -> None:
        """Run until SIGTERM or SIGINT. Raises ApiAbsent, NotLeading or TaskEnded."""
        server = HealthServer(self._health, self._page)
        await server.start(listener)
        try:
            await self._discovery.need_own(_API_PATIENCE_SECONDS)
            await self._run_all()
        finally:
            await self._leadership.release()
            await self._figures.close()
            await self._models.close()
            await server.close()

    async def _run_all(self) -> None:
        stopping = asyncio.Event()
        parts: dict[str, Awaitable[None]] = {
            "kopf": run_kopf(self._watches, self._namespaces),
            "a watch": see_that_watches_run(self._truth.filled),
            "the Lease": self._leadership.keep(),
            "the Lease's watch": self._leadership.watch(),
            "the comparison with the cluster": self._truth.run(),
            "discovery": self._discovery.poll(),
            "reading figures": self._read_figures(),
            "measuring the event loop": measure_lag(self.metrics.loop_lag.set),
            "reconciling": self._work(),
            "waiting for the end": stopping.wait(),  # type: ignore[dict-item]
        }
        tasks = {asyncio.create_task(_run(part), name=name) for name, part in parts.items()}
        asyncio.get_running_loop().call_later(0.5, _on_signals, stopping.set)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_END_SECONDS)
        if stopping.is_set():
            return
        for task in done:
            fault = None if task.cancelled() else task.exception()
            if fault is not None:
                raise fault
            raise TaskEnded(f"{task.get_name()} ended by itself")

    async def _work(self) -> None:
        await self._truth.filled.wait()
        await self._leadership.acquired.wait()
        self._look_at_all()
        await self._workers.run(self._reconcile)

    async def _read_figures(self) -> None:
        await self._leadership.acquired.wait()
        while True:
            self._figures.ask_due(self._cache.replicas(), self._key_of, self._workers.add)
            await asyncio.sleep(_FIGURES_TICK_SECONDS)

    def _key_of(self, replica: ReplicaAddress) -> ServiceKey | None:
        return self._cache.key_of(replica.namespace, replica.service)

    def _look_at_all(self) -> None:
        for key in self._cache.service_keys():
            self._workers.add(key)

    def _forget(self, key: ServiceKey) -> None:
        self._workers.forget(key)
        self.metrics.forget(key)

    def _health(self) -> Health:
        dead = ""
        if not self._discovery.wrong and self._leadership.echo_is_missing:
            dead = f"the watch has not shown the own Lease for {self._leadership.echo_age_seconds:.0f} s"
        dead = dead or self._truth.refused or self._truth.deaf
        unready = self._discovery.wrong or ("" if self._truth.filled.is_set() else "the watches are not filled yet")
        return Health(dead, unready)

    def _page(self) -> bytes:
        depth, age = self._workers.waiting()
        self.metrics.queue_depth.set(depth)
        self.metrics.queue_age.set(age)
        self.metrics.watch_age.set(time.monotonic() - self._watches.last_event_at)
        self.metrics.canary_age.set(self._leadership.echo_age_seconds)
        self.metrics.leading.set(self._fence.is_open)
        self.metrics.crd_missing_fields.set(len(self._discovery.missing_fields or ()))
        return self.metrics.page()

    def _on_figures(self, done: bool) -> None:
        self.metrics.figures_reads.labels("done" if done else "failed").inc()

    def _on_write(self, kind: str, result: str) -> None:
        self.metrics.applies.labels(kind, result).inc()

    def _on_result(self, key: ServiceKey, result: ReconcileResult, seconds: float) -> None:
        self.metrics.reconcile_seconds.observe(seconds)
        if result == "gone":
            self.metrics.forget(key)
            return
        self.metrics.reconciles.labels(result).inc()


def namespaces_of(settings: OperatorSettings, own: str) -> tuple[str, ...] | None:
    """Return the namespaces that are looked after; None is all of them."""
    if settings.scope == "Cluster":
        return None
    return tuple(settings.watch_namespaces) or (own,)


async def _run(part: Awaitable[Any]) -> None:
    await part


def _on_signals(stop: Callable[[], None]) -> None:
    """kopf takes the signals for itself when it starts; its own end would look like a failure."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
