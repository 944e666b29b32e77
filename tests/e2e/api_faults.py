"""A proxy in front of a real API server that does harm on demand: refusals, latency, cut, silent and expired watches.

    with faulty_api(control_plane.kubeconfig, tmp_path) as api:
        program(KUBECONFIG=api.kubeconfig)          # or api.kubeconfig_with(token_file=...)
        api.fail(429, retry_after=1, times=3)       # the next three requests; `when=is_watch` for watches alone
        api.silence_watches()                       # they stay open and say nothing, until api.speak()
        api.wait_for_request(is_list, after=mark)

TLS on both sides. A request's own bearer token goes on; one without goes with the client certificate of the kubeconfig
that the proxy was given. Runs in a thread of its own, for tests with and without a loop. No upgrades: no exec.
"""

import asyncio
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from aiohttp import web
from multidict import CIMultiDictProxy

from pagefleet_local import pki
from tests.e2e.api_server import HOP_BY_HOP, ApiServer

_PATIENCE_SECONDS = 60.0
_CLOSE_SECONDS = 5.0


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the proxy saw it. `status` is what the client got; 0 where it got nothing."""

    method: str
    path: str
    query: dict[str, str]
    user_agent: str
    status: int = 0


def is_watch(request: Request) -> bool:
    return request.query.get("watch") in ("1", "true")


def is_list(request: Request) -> bool:
    return request.method == "GET" and not is_watch(request)


def is_write(request: Request) -> bool:
    return request.method not in ("GET", "HEAD", "OPTIONS")


def any_request(request: Request) -> bool:
    return True


@dataclass(slots=True)
class _Fault:
    """What happens to the next `times` requests that it is meant for."""

    when: Callable[[Request], bool]
    times: int
    status: int | None = None  # None: the connection is cut before an answer
    headers: dict[str, str] = field(default_factory=dict)


class FaultyApi:
    """Public methods may be called from any thread; what they ask for is in force when they return."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._folder = folder
        self._upstream = ApiServer(kubeconfig)
        self._loop = asyncio.new_event_loop()
        self._changed = threading.Condition()
        self._seen: list[Request] = []
        self._faults: list[_Fault] = []
        self._latency: tuple[Callable[[Request], bool], float] = (any_request, 0.0)
        self._watches: set[_Watch] = set()
        self._are_silent = False
        self.url = ""
        authority = pki.authority(folder / "keys", "ca")
        self._serving = authority.server("proxy", "kube-apiserver", ["localhost", "127.0.0.1"])
        self._authority = authority.certificate

    # --- for the program under test

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig to the proxy; it carries no credential, so requests go on with the proxy's."""
        return self.kubeconfig_with()

    def kubeconfig_with(self, *, token: str | None = None, token_file: Path | None = None) -> Path:
        """Return a kubeconfig to the proxy with this credential."""
        user = {"token": token} if token is not None else {"tokenFile": str(token_file)} if token_file else {}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "faulty",
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "faulty"}}],
            "clusters": [
                {"name": "faulty", "cluster": {"server": self.url, "certificate-authority": str(self._authority)}}
            ],
            "users": [{"name": "faulty", "user": user}],
        }
        with tempfile.NamedTemporaryFile("w", dir=self._folder, suffix=".kubeconfig", delete=False) as file:
            yaml.safe_dump(content, file)
        return Path(file.name)

    # --- harm

    def fail(
        self,
        status: int,
        *,
        times: int = 1,
        when: Callable[[Request], bool] = any_request,
        retry_after: int | None = None,
    ) -> None:
        """Answer the next requests with a refusal of that status instead of the API server's answer."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self._do(lambda: self._faults.append(_Fault(when, times, status, headers)))

    def cut(self, *, times: int = 1, when: Callable[[Request], bool] = any_request) -> None:
        """Close the connections of the next requests without an answer."""
        self._do(lambda: self._faults.append(_Fault(when, times)))

    def delay(self, seconds: float, *, when: Callable[[Request], bool] = any_request) -> None:
        """Let each request wait before it goes on, until told another time; 0 for none."""
        self._do(lambda: setattr(self, "_latency", (when, seconds)))

    def cut_watches(self, when: Callable[[Request], bool] = any_request) -> int:
        """Break open watches in the middle; return how many."""
        return self._end_watches(when, lambda watch: watch.cut())

    def expire_watches(self, when: Callable[[Request], bool] = any_request) -> int:
        """End open watches as the API server does when their place in the history is gone: an event with 410."""
        return self._end_watches(when, lambda watch: watch.expire())

    def silence_watches(self) -> None:
        """From now on watches, open and new ones, stay open and tell nothing; they lose what happens."""
        self._do(lambda: setattr(self, "_are_silent", True))

    def speak(self) -> None:
        """New watches tell again; those that lost events stay silent, as broken ones do."""
        self._do(lambda: setattr(self, "_are_silent", False))

    def heal(self) -> None:
        """No more harm to what comes from now on."""
        self._do(self._faults.clear)
        self.delay(0)
        self.speak()

    def _end_watches(self, when: Callable[[Request], bool], end: Callable[["_Watch"], None]) -> int:
        def act() -> int:
            ended = [watch for watch in self._watches if when(watch.request)]
            for watch in ended:
                end(watch)
            return len(ended)

        return self._do(act)

    # --- what was seen

    def mark(self) -> int:
        """Return a place among the requests, for `after`."""
        with self._changed:
            return len(self._seen)

    def requests(self, when: Callable[[Request], bool] = any_request, *, after: int = 0) -> list[Request]:
        """Return the requests that have been answered (watches: begun) since the mark."""
        with self._changed:
            return [request for request in self._seen[after:] if when(request)]

    def wait_for_request(
        self,
        when: Callable[[Request], bool],
        *,
        after: int = 0,
        times: int = 1,
        seconds: float = _PATIENCE_SECONDS,
    ) -> list[Request]:
        """Return the requests since the mark as soon as there are so many."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len([request for request in self._seen[after:] if when(request)]) >= times, seconds
            )
            assert came, f"{times} such requests didn't come within {seconds} s; seen: {self._seen[after:]}"
        return self.requests(when, after=after)

    @property
    def num_watches(self) -> int:
        """Watches that are open now."""
        return self._do(lambda: len(self._watches))

    # --- the proxy

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = Request(
            incoming.method,
            incoming.path,
            dict(incoming.query),
            incoming.headers.get("User-Agent", ""),
        )
        concerned, seconds = self._latency
        if seconds and concerned(request):
            await asyncio.sleep(seconds)
        fault = self._next_fault(request)
        if fault is not None and fault.status is None:
            self._note(request, 0)
            assert incoming.transport is not None
            incoming.transport.abort()
            raise asyncio.CancelledError
        if fault is not None and fault.status is not None:
            self._note(request, fault.status)
            return web.json_response(_status(fault.status), status=fault.status, headers=fault.headers)
        async with self._upstream.send(incoming, await incoming.read()) as answer:
            self._note(request, answer.status)
            if is_watch(request) and answer.status == 200:
                return await self._tell(request, incoming, answer)
            return web.Response(status=answer.status, headers=_passed(answer.headers), body=await answer.read())

    async def _tell(
        self, request: Request, incoming: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
        await response.prepare(incoming)
        watch = _Watch(request, incoming, answer, response)
        self._watches.add(watch)
        try:
            await watch.run(lambda: self._are_silent)
        finally:
            self._watches.discard(watch)
        return response

    def _next_fault(self, request: Request) -> _Fault | None:
        for fault in self._faults:
            if fault.times > 0 and fault.when(request):
                fault.times -= 1
                return fault
        return None

    def _note(self, request: Request, status: int) -> None:
        with self._changed:
            self._seen.append(replace(request, status=status))
            self._changed.notify_all()

    # --- its thread

    def _do(self, act: Callable[[], _Result]) -> _Result:
        """Call `act` in the proxy's loop and return what it returned."""

        async def acting() -> _Result:
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result(_PATIENCE_SECONDS)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve for the length of a block."""
        started, ending = threading.Event(), asyncio.Event()
        thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve(started, ending)), name="faulty-api"
        )
        thread.start()
        try:
            assert started.wait(_PATIENCE_SECONDS)
            yield
        finally:
            self._loop.call_soon_threadsafe(ending.set)
            thread.join(_PATIENCE_SECONDS)
            self._loop.close()

    async def _serve(self, started: threading.Event, ending: asyncio.Event) -> None:
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._serving.certificate, self._serving.key)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"https://127.0.0.1:{port}"
        async with self._upstream:
            started.set()
            await ending.wait()
            await site.stop()
            assert runner.server is not None
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()  # closing in order would wait for the client
            await runner.cleanup()
        await _settled()


async def _settled() -> None:
    """Let connections that were closed, or were still greeting, go before their loop does."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=_CLOSE_SECONDS)
    for _ in range(20):
        await asyncio.sleep(0)


class _Watch:
    """One open watch of a client."""

    def __init__(
        self, request: Request, incoming: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> None:
        self.request = request
        self._incoming = incoming
        self._answer = answer
        self._response = response
        self._ended = asyncio.Event()
        self._last_words = b""

    def cut(self) -> None:
        if self._incoming.transport is not None:
            self._incoming.transport.abort()
        self._ended.set()

    def expire(self) -> None:
        event = {"type": "ERROR", "object": _status(410)}
        self._last_words = json.dumps(event).encode() + b"\n"
        self._ended.set()

    async def run(self, is_silent: Callable[[], bool]) -> None:
        """Pass events on until the API server or a fault ends it."""
        telling = asyncio.ensure_future(self._pass_on(is_silent))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((telling, ended), return_when=asyncio.FIRST_COMPLETED)
            if self._last_words:
                await self._response.write(self._last_words)
        finally:
            for task in (telling, ended):
                task.cancel()
            await asyncio.gather(telling, ended, return_exceptions=True)

    async def _pass_on(self, is_silent: Callable[[], bool]) -> None:
        async for line in self._answer.content:
            if is_silent():
                await self._ended.wait()  # even after the API server has ended it
                return  # what it lost stays lost
            await self._response.write(line)


def _passed(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in {*HOP_BY_HOP, "content-length"}}


def _status(code: int) -> dict[str, Any]:
    """Return the object by which the API server says that something went wrong."""
    reasons = {401: "Unauthorized", 403: "Forbidden", 410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable"}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"told to answer {code}",
        "reason": reasons.get(code, "InternalError"),
        "code": code,
    }


@contextlib.contextmanager
def faulty_api(kubeconfig: Path, folder: Path) -> Iterator[FaultyApi]:
    """Run a proxy in front of the API server of a kubeconfig with a client certificate; files go into the folder."""
    api = FaultyApi(kubeconfig, folder)
    with api.serving():
        yield api
