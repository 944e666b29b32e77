"""The application, as plain ASGI: its own pages, and the paths that go to the replicas. All else is 404."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import Receive, Scope, Send

from pagefleet_contract.names import PATH_LIVE, PATH_METRICS, PATH_READY
from pagefleet_contract.openai_error import Refusal, json_bytes
from pagefleet_router.exchange import Exchange, WholeAnswer, refusal_answer
from pagefleet_router.fleet import Fleet
from pagefleet_router.metrics import RouterFigures, exposition
from pagefleet_router.paths import forwarded_path
from pagefleet_router.proxy import Proxy
from pagefleet_router.refusals import TOO_MANY_CONNECTIONS, method_not_allowed, unknown_url


class App:
    def __init__(self, proxy: Proxy, fleet: Fleet, figures: RouterFigures, is_crowded: Callable[[], bool]) -> None:
        self._proxy = proxy
        self._fleet = fleet
        self._figures = figures
        self._is_crowded = is_crowded
        self._pages: dict[bytes, Callable[[], WholeAnswer]] = {
            PATH_LIVE.encode(): self._live_page,
            PATH_READY.encode(): self._ready_page,
            PATH_METRICS.encode(): self._metrics_page,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope["raw_path"]
        page = self._pages.get(raw_path)
        path = None if page else forwarded_path(raw_path)
        if path is not None and not self._is_crowded():
            await self._proxy(scope, receive, send, path)
            return
        exchange = Exchange(scope, send, closes=path is not None or self._proxy.is_draining)
        if path is not None:
            await self._refuse(exchange, TOO_MANY_CONNECTIONS)
        elif page is None:
            await self._refuse(exchange, unknown_url(scope["method"], raw_path))
        elif scope["method"] not in ("GET", "HEAD"):
            await self._refuse(exchange, method_not_allowed(scope["method"], raw_path))
        else:
            await exchange.answer(page())

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        await exchange.answer(refusal_answer(refusal))
        self._figures.ended(refusal.status, None)

    def _live_page(self) -> WholeAnswer:
        return _json_page(200, {"status": "ok"})

    def _ready_page(self) -> WholeAnswer:
        """Ready as soon as the pods are known, with none of them too: the front door is always there."""
        if self._proxy.is_draining:
            reason = "draining: no new connections are taken"
        elif not self._fleet.known:
            reason = "the pods of the service haven't been read yet; the log says why"
        else:
            return _json_page(200, {"status": "ok", "reason": "ready", "replicas": self._fleet.count()})
        return _json_page(503, {"status": "failing", "reason": reason})

    def _metrics_page(self) -> WholeAnswer:
        body = exposition(self._figures, self._fleet, self._proxy.num_open)
        return WholeAnswer(200, [(b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode())], body)


def _json_page(status: int, content: object) -> WholeAnswer:
    return WholeAnswer(status, [(b"content-type", b"application/json")], json_bytes(content))
