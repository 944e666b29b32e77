"""The router's life: watching, serving, draining, the end."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from socket import socket
from typing import Any

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.listening import base_url
from pagefleet_contract.router import RouterConfig
from pagefleet_router.app import App
from pagefleet_router.credentials import Access, NoAccess
from pagefleet_router.fleet import Fleet
from pagefleet_router.http_server import HTTPServer
from pagefleet_router.kubernetes_api import ApiFault, PodsApi
from pagefleet_router.metrics import RouterFigures
from pagefleet_router.proxy import Proxy
from pagefleet_router.refusals import DRAIN_ENDED
from pagefleet_router.watch import Pods, PodWatch

# After SIGTERM, until the last connections that were on their way to a Ready router have come.
_LINGER_SECONDS = 0.4
# Each request takes two files, and some others are open.
_OTHER_FILES = 64

logger = logging.getLogger(__name__)


async def serve(
    config: RouterConfig, keys: ApiKeys, read_access: Callable[[], Access], listener: socket, most_files: int
) -> int:
    """Serve until a signal comes. Return the exit code."""

    async def connect() -> PodsApi:
        try:
            return PodsApi(read_access(), config.namespace, config.service_name)
        except NoAccess as error:
            raise ApiFault(str(error)) from error

    return await serve_with(connect, config, keys, listener, most_files)


async def serve_with(
    connect: Callable[[], Awaitable[Pods]], config: RouterConfig, keys: ApiKeys, listener: socket, most_files: int
) -> int:
    """Serve the pods that `connect`'s API tells until a signal comes. Return the exit code."""
    stop = _StopSignals()
    fleet = Fleet(asyncio.get_running_loop().time)
    figures = RouterFigures(version("pagefleet"), config.service_name, config.served_name)
    proxy = Proxy(config, fleet, keys, figures)
    max_connections = max(16, (most_files - _OTHER_FILES) // 2)
    http = HTTPServer(
        listener, max_connections, config.client_timeout_seconds, lambda crowded: App(proxy, fleet, figures, crowded)
    )
    watching = asyncio.create_task(PodWatch(connect, fleet).run())
    serving = asyncio.create_task(http.serve())
    logger.info("listening on %s for %s/%s", base_url(listener), config.namespace, config.service_name)
    try:
        await _first_of(watching, serving, asyncio.ensure_future(stop.asked.wait()))
        await _drain(proxy, http, config.drain_timeout_seconds, stop)
        await serving
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        proxy.close()
    return 0


async def _first_of(*tasks: "asyncio.Future[Any]") -> None:
    """Return when one of them is done; raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _drain(proxy: Proxy, http: HTTPServer, timeout_seconds: float, stop: "_StopSignals") -> None:
    """Let the requests in flight come to their end, within the time."""
    proxy.begin_drain()
    logger.info("draining: %d requests in flight; a second signal ends them at once", proxy.num_open)
    await _within(_LINGER_SECONDS, stop.hurry.wait())
    http.stop_accepting()
    await _within(timeout_seconds, proxy.idle.wait(), stop.hurry.wait())
    proxy.stop_all(DRAIN_ENDED)
    http.ending.set()


async def _within(seconds: float, *waits: Coroutine[object, object, object]) -> None:
    """Return when the first of these has come, or the time is over."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class _StopSignals:
    """SIGTERM and SIGINT: the first asks for a drain, the second for haste."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take)

    def _take(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()
