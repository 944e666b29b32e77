"""One server's life: loading, serving, draining, the end. Waits for events and acts; what they mean is decided in
`EngineClient` and `health`."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import socket

import uvicorn
from fastapi import FastAPI

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.listening import base_url
from pagefleet_runtime.admin import Admin, admin_router
from pagefleet_runtime.auth import AccessKeys
from pagefleet_runtime.engine_client import EngineClient
from pagefleet_runtime.engine_link import EngineLink
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.server.connections import Connections, Working, room_within
from pagefleet_runtime.startup import aligned_table, ready_lines
from pagefleet_runtime.text.tokenizer import LoadTokenizer

# Thousands may connect at the same moment; the kernel cuts it to what it allows.
_BACKLOG = 4096
# How long the last answers may take to reach clients that read slowly, once nothing more is computed for them.
_FLUSH_SECONDS = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a kind of model brings: what runs its engine, and how its tokenizer is loaded."""

    link: EngineLink
    load_tokenizer: LoadTokenizer


async def serve(parts: Parts, config: EngineConfig, keys: AccessKeys, listener: socket, most_files: int) -> str | None:
    """Serve until a signal comes or the engine fails. Return why it failed, or None after a drain."""
    stop_signals = _StopSignals()
    figures = RequestFigures()
    client = EngineClient(parts.link, config.serving, figures)
    # The engine first: it loads the model while this process imports the rest.
    client.start()
    try:
        http = _HTTPServer(_make_app(client, parts.load_tokenizer, config, figures, keys), listener, most_files)
        serving = asyncio.create_task(http.serve())
        logger.info("listening on %s while the model loads", base_url(listener))
        await _live(client, stop_signals, lambda: _announce(client, config, keys, listener))
        http.should_exit = True
        await serving
        return client.failure
    finally:
        await asyncio.to_thread(client.stop)


def _make_app(
    client: EngineClient, load_tokenizer: LoadTokenizer, config: EngineConfig, figures: RequestFigures, keys: AccessKeys
) -> FastAPI:
    from pagefleet_runtime.server.app import create_app
    from pagefleet_runtime.server.service import served_name

    app = create_app(client, config, figures, keys.api, load_tokenizer)
    app.include_router(admin_router(Admin(client, config, figures, keys, served_name(config.model))))
    return app


def _announce(client: EngineClient, config: EngineConfig, keys: AccessKeys, listener: socket) -> None:
    from pagefleet_runtime.server.service import served_name

    assert client.info is not None
    print(aligned_table(client.info.startup_table), file=sys.stderr)
    for note in client.info.notes:
        print(f"  note: {note}", file=sys.stderr)
    print(ready_lines(base_url(listener), served_name(config.model), keys.api.required), file=sys.stderr, flush=True)


async def _live(client: EngineClient, signals: "_StopSignals", announce: Callable[[], None]) -> None:
    """Wait out the server's life. Return once nothing more is to be answered."""
    await _first_of(client.loaded(), signals.stop.wait())
    if client.state == "ready":
        announce()
    if client.state != "loading":
        await _first_of(client.failed(), signals.stop.wait())
    if client.state != "failed":
        client.begin_drain()
        logger.info("draining: %d requests in flight; a second signal ends them at once", client.in_flight)
        await _first_of(client.drained(), client.failed(), signals.hurry.wait())
        client.end_all("the server was told to stop at once")


async def _first_of(*waits: Coroutine[object, object, object]) -> None:
    """Return when the first of these has come; give up the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class _StopSignals:
    """SIGTERM and SIGINT: the first asks for a drain, the second for haste."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take)

    def _take(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


class _HTTPServer(uvicorn.Server):
    """uvicorn as we want it: one process, no log line per request, signals left to us, connections as files allow."""

    def __init__(self, app: FastAPI, listener: socket, most_files: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                loop="none",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_FLUSH_SECONDS,
            )
        )
        self._listener = listener
        self._most_files = most_files

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._listener.listen(_BACKLOG)
        self._connections = Connections(self._listener, room_within(self._most_files), self._connection)
        self._connections.start()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._connections.stop()
        self._listener.close()
        await super().shutdown()

    def _connection(self, connections: Connections) -> Working:
        return Working(connections, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
