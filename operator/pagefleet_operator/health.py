"""The operator's health and figures over HTTP. It answers from the event loop: one that is stuck doesn't answer."""

import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from pagefleet_contract.names import PATH_LIVE, PATH_METRICS, PATH_READY


@dataclass(frozen=True, slots=True)
class Health:
    """Why the process should be restarted, and why it isn't ready; each empty where nothing is wrong."""

    dead_because: str = ""
    unready_because: str = ""


class HealthServer:
    """Answers until it is closed. `judge` and `page` are asked for each request."""

    def __init__(self, judge: Callable[[], Health], page: Callable[[], bytes]) -> None:
        self._judge = judge
        self._page = page
        application = web.Application()
        application.router.add_get(PATH_LIVE, self._live)
        application.router.add_get(PATH_READY, self._ready)
        application.router.add_get(PATH_METRICS, self._metrics)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self, listener: socket.socket) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _answer(self._judge().dead_because)

    async def _ready(self, _: web.Request) -> web.Response:
        health = self._judge()
        return _answer(health.dead_because or health.unready_because)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._page(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _answer(wrong: str) -> web.Response:
    return web.json_response({"status": "failing" if wrong else "ok", "reason": wrong}, status=503 if wrong else 200)
