"""A router in this process, in front of replicas that the test has started: what a client of it sees."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.listening import bound_socket
from pagefleet_contract.router import RouterConfig
from pagefleet_router.app import App
from pagefleet_router.fleet import Fleet
from pagefleet_router.http_server import HTTPServer
from pagefleet_router.metrics import RouterFigures, metric_values
from pagefleet_router.proxy import Proxy
from pagefleet_router.replicas import Replica, ReplicaState
from tests.router.scripted_replica import ScriptedReplica

MODEL = "tiny"
_PATIENCE_SECONDS = 20


@dataclass
class Door:
    port: int
    fleet: Fleet
    proxy: Proxy
    figures: RouterFigures
    http: httpx2.AsyncClient

    @property
    def api(self) -> str:
        """What the openai client wants as base_url."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def raw(self, request: bytes) -> "Raw":
        """Send bytes on a connection of their own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        writer.write(request)
        return Raw(reader, writer)

    async def exchange(self, request: bytes) -> bytes:
        """Send bytes and return everything that comes until the router closes."""
        raw = await self.raw(request)
        try:
            return await raw.rest()
        finally:
            await raw.leave()

    def figure(self, name: str, *labels: str) -> float:
        values = metric_values(self.figures, self.fleet, self.proxy.num_open)
        (found,) = [value for metric, value in values.items() if metric.name == f"pagefleet_router_{name}"]
        return found.get(labels, 0.0)


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                return await self.reader.read()
        return b""

    async def leave(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def until(holds: Callable[[], bool]) -> None:
    """Return when it holds; it must come about soon."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for happens inside the router, which tells nobody
            await asyncio.sleep(0.001)


def replica_at(address: str, state: ReplicaState = "ready", name: str | None = None) -> Replica:
    return Replica(f"uid-{address}", name or f"chat-{address}", address, state)


@contextlib.asynccontextmanager
async def door(
    *replicas: ScriptedReplica | Replica,
    keys: Path | None = None,
    max_connections: int = 4000,
    port: int | None = None,
    **settings: Any,
) -> AsyncIterator[Door]:
    """Open a router in front of the replicas, all of them ready."""
    ports = {replica.port for replica in replicas if isinstance(replica, ScriptedReplica)} | ({port} if port else set())
    (engine_port,) = ports or {1}
    config = RouterConfig(service_name="chat", namespace="prod", served_name=MODEL, engine_port=engine_port, **settings)
    # Time stands still: a replica that is avoided for a while is avoided to the test's end, however long that takes.
    fleet = Fleet(lambda: 0.0, seed=7)
    seen = [replica_at(r.address) if isinstance(r, ScriptedReplica) else r for r in replicas]
    fleet.see(tuple(seen))
    fleet.hear()
    figures = RouterFigures("1", config.service_name, config.served_name)
    proxy = Proxy(config, fleet, ApiKeys.load(keys), figures)
    listener = bound_socket("127.0.0.1", 0)
    server = HTTPServer(
        listener, max_connections, config.client_timeout_seconds, lambda crowded: App(proxy, fleet, figures, crowded)
    )
    serving = asyncio.create_task(server.serve())
    bound = listener.getsockname()[1]
    timeout = httpx2.Timeout(_PATIENCE_SECONDS)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{bound}", timeout=timeout) as http:
        try:
            yield Door(bound, fleet, proxy, figures, http)
        finally:
            server.ending.set()
    await serving
    proxy.close()
    assert proxy.num_open == 0
    assert all(fleet.in_flight_on(replica) == 0 for replica in seen)
