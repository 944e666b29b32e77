"""uvicorn as we want it: one process, no log line per request, signals left to us, bounded connections."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from socket import socket

import uvicorn
from starlette.types import ASGIApp

from pagefleet_router.connections import Connection

# Thousands may connect at the same moment; the kernel cuts it to what it allows.
_BACKLOG = 4096
# Longer than the idle times of common load balancers, so that they close first and never send on what is closing.
_KEEP_ALIVE_SECONDS = 75
# How long the last answers may take to reach clients that read slowly.
_FLUSH_SECONDS = 5


class HTTPServer(uvicorn.Server):
    """Serves until `ending` is set. `make_app` is given a function that says whether too many are connected."""

    def __init__(
        self,
        listener: socket,
        max_connections: int,
        head_seconds: float,
        make_app: Callable[[Callable[[], bool]], ASGIApp],
    ) -> None:
        # The last eighth is for probes and for refusals in words.
        working = max_connections - max_connections // 8
        super().__init__(
            uvicorn.Config(
                make_app(lambda: len(self.server_state.connections) > working),
                http=partial(Connection, max_connections=max_connections, head_seconds=head_seconds),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                loop="none",
                interface="asgi3",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_FLUSH_SECONDS,
            )
        )
        self.ending = asyncio.Event()
        self._listener = listener

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets=[self._listener])

    async def main_loop(self) -> None:
        await self.ending.wait()

    def stop_accepting(self) -> None:
        """Take no new connections; those without a request close, the others after theirs."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
