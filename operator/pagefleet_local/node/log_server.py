"""The node's port for the API server: `kubectl logs`, over TLS, and for its certificate alone."""

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aiohttp import web

from pagefleet_local.node.logs import LogQuery, read_log


@dataclass(frozen=True)
class FoundLog:
    path: Path
    goes_on: Callable[[], bool]


class NoLog(Exception):
    """There is no such log; `code` is the HTTP status that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


# From namespace, pod, container and whether the previous run is meant, to its log. Raises NoLog.
FindLog = Callable[[str, str, str, bool], FoundLog]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class LogAccess:
    """The server's own pair, and who gets logs: a client whose certificate is of that authority and that name."""

    certificate: Path
    key: Path
    client_authority: Path
    client_name: str


def server_tls(access: LogAccess) -> ssl.SSLContext:
    """Return a server's TLS that takes connections only from clients with a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(access.certificate, access.key)
    context.load_verify_locations(access.client_authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class LogServer:
    def __init__(self, access: LogAccess, find: FindLog) -> None:
        self._access = access
        self._find = find
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen, and return the port."""
        application = web.Application(middlewares=[self._authorize])
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        application.router.add_route("*", "/{anything:.*}", self._nothing_else)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=server_tls(self._access))
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport else None
        name = common_name(certificate or {})
        if name != self._access.client_name:
            raise web.HTTPForbidden(text=f"{name} may not read logs here; ask the API server for them")
        return await handler(request)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _nothing_else(self, _request: web.Request) -> web.Response:
        text = "the process node has logs only, no exec, attach or port-forward: its pods are processes of this machine"
        return web.Response(status=501, text=text)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        try:
            query = log_query(request.query, time.time())
            previous = request.query.get("previous") == "true"
            found = self._find(where["namespace"], where["pod"], where["container"], previous)
        except NoLog as error:
            return web.Response(status=error.code, text=str(error))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for chunk in read_log(found.path, query, found.goes_on):
            await response.write(chunk)
        await response.write_eof()
        return response


def common_name(certificate: Mapping[str, object]) -> str:
    """Return the common name of a certificate as the ssl module shows it; empty where it has none."""
    subject = certificate.get("subject")
    pairs = [pair for part in (subject if isinstance(subject, tuple) else ()) for pair in part]
    return next((str(value) for key, value in pairs if key == "commonName"), "")


def log_query(parameters: Mapping[str, str], now: float) -> LogQuery:
    """Read what `kubectl logs` asks. Raises ValueError for what is no number or time."""
    since: float | None = None
    if "sinceSeconds" in parameters:
        since = now - int(parameters["sinceSeconds"])
    if "sinceTime" in parameters:
        since = datetime.fromisoformat(parameters["sinceTime"]).timestamp()
    return LogQuery(
        follow=parameters.get("follow") == "true",
        timestamps=parameters.get("timestamps") == "true",
        tail_lines=int(parameters["tailLines"]) if "tailLines" in parameters else None,
        since=since,
        limit_bytes=int(parameters["limitBytes"]) if "limitBytes" in parameters else None,
    )
