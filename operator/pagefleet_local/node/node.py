"""The node as a whole: its parts, started together and left together."""

import asyncio
import contextlib
import logging
import signal
import sys
from contextlib import aclosing
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pagefleet_local.node.addresses import Addresses
from pagefleet_local.node.api import Api, Changed, Gone, Listed, watch
from pagefleet_local.node.devices import Devices
from pagefleet_local.node.endpoints import Backend, Listener, cluster_address, forwarding_table
from pagefleet_local.node.events import Events
from pagefleet_local.node.forwarding import Forwarder
from pagefleet_local.node.log_server import LogServer
from pagefleet_local.node.logs import LogKeeper
from pagefleet_local.node.machine import node_status
from pagefleet_local.node.memory import MemoryWatch
from pagefleet_local.node.objects import ReferencedObjects
from pagefleet_local.node.options import RunOptions
from pagefleet_local.node.pod_state import Tools
from pagefleet_local.node.pod_table import PodTable
from pagefleet_local.node.pods import Manifest, name_of, namespace_of
from pagefleet_local.node.registration import Registration

# A port that another program holds may become free.
_LISTEN_AGAIN_SECONDS = 10.0
_log = logging.getLogger(__name__)


class Node:
    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._api = Api(options.kubeconfig)
        self._services = Services(self._api)
        self._events = Events(self._api, options.name)
        self._forwarder = Forwarder(self._listener_refused)
        self._tools = Tools(
            api=self._api,
            events=self._events,
            objects=ReferencedObjects(self._api),
            log_keeper=LogKeeper(),
            memory=MemoryWatch(),
            addresses=Addresses(options.address_range),
            devices=Devices(options.capacity.gpus),
            address_of=self._services.address_of,
            node=options.name,
            images=frozenset(options.images),
            # Not resolved: the folder of a virtual environment's link to the interpreter is the environment's.
            programs=Path(sys.executable).parent,
            cache=options.cache,
            allocatable=options.capacity.resources(),
        )
        self._pods = PodTable(self._tools, options.state, self._services.changed.set)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; the pods' processes go on."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        options = self._options
        server = LogServer(options.log_access, self._pods.find_log)
        try:
            port = await server.start("127.0.0.1", options.kubelet_port)
            status = partial(node_status, options.name, options.capacity, port, options.images, version("pagefleet"))
            async with asyncio.TaskGroup() as parts:
                tasks = [
                    parts.create_task(Registration(self._api, options.name, status).run()),
                    parts.create_task(self._services.follow()),
                    parts.create_task(self._follow_pods()),
                    parts.create_task(self._forward()),
                    parts.create_task(self._tools.log_keeper.run()),
                    parts.create_task(self._tools.memory.run()),
                ]
                await stopped.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self._pods.leave()
            self._forwarder.close()
            await server.close()
            await self._api.close()
            _log.info("the node ends; its pods' processes go on")

    async def _follow_pods(self) -> None:
        # A container's words may name Services.
        await self._services.known.wait()
        await self._pods.follow()

    async def _forward(self) -> None:
        everywhere = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if everywhere else _LISTEN_AGAIN_SECONDS):
                    await self._services.changed.wait()
            self._services.changed.clear()
            everywhere = await self._forwarder.follow(self._table())

    def _table(self) -> dict[Listener, tuple[Backend, ...]]:
        return forwarding_table(self._services.all(), self._pods.manifests())

    async def _listener_refused(self, listener: Listener, error: OSError) -> None:
        service = self._services.find(listener.namespace, listener.service)
        if service:
            message = f"can't listen on {listener.address}:{listener.port}: {error.strerror}; use a port from 1024 on"
            await self._events.post("Service", service, "FailedToListen", message, warning=True)


class Services:
    """The Services of the cluster. `changed` is set when the forwarding may have to change."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._found: dict[tuple[str, str], Manifest] = {}
        self.known = asyncio.Event()
        self.changed = asyncio.Event()

    def all(self) -> list[Manifest]:
        return list(self._found.values())

    def find(self, namespace: str, name: str) -> Manifest | None:
        return self._found.get((namespace, name))

    def address_of(self, namespace: str, name: str) -> str | None:
        service = self.find(namespace, name)
        return cluster_address(service) if service else None

    async def follow(self) -> None:
        async with aclosing(watch(self._api, "/api/v1/services", {})) as events:
            async for event in events:
                match event:
                    case Listed(services):
                        self._found = {(namespace_of(each), name_of(each)): each for each in services}
                    case Changed(service):
                        self._found[namespace_of(service), name_of(service)] = service
                    case Gone(service):
                        self._found.pop((namespace_of(service), name_of(service)), None)
                self.known.set()
                self.changed.set()
