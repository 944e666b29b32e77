"""One pod on this node: its manifest, its record, its folder, and the tools of the node that its parts share."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pagefleet_local.node.addresses import Addresses
from pagefleet_local.node.api import Api
from pagefleet_local.node.devices import Devices
from pagefleet_local.node.environment import Place, Sources
from pagefleet_local.node.events import Events
from pagefleet_local.node.folders import PodFolder
from pagefleet_local.node.logs import LogKeeper
from pagefleet_local.node.memory import MemoryWatch
from pagefleet_local.node.objects import ReferencedObjects
from pagefleet_local.node.pods import Manifest, all_containers, namespace_of, uid_of
from pagefleet_local.node.process_spec import Grounds
from pagefleet_local.node.records import ContainerRecord, PodRecord
from pagefleet_local.node.rewriting import AddressOf
from pagefleet_local.node.volumes import references


@dataclass(frozen=True)
class Tools:
    """What all pods of the node share."""

    api: Api
    events: Events
    objects: ReferencedObjects
    log_keeper: LogKeeper
    memory: MemoryWatch
    addresses: Addresses
    devices: Devices
    address_of: AddressOf
    node: str
    images: frozenset[str]
    programs: Path
    cache: Path | None
    allocatable: Mapping[str, str]


class PodState:
    """The one owner of a pod's record; every change of it is kept before anybody hears of it."""

    def __init__(self, pod: Manifest, record: PodRecord, folder: PodFolder, tools: Tools) -> None:
        self.pod = pod
        self.record = record
        self.folder = folder
        self.tools = tools
        # Set when the status may have changed, and when something that the pod names or is has changed.
        self.changed = asyncio.Event()
        self.woken = asyncio.Event()
        folder.save(record)
        tools.objects.hold(uid_of(pod), namespace_of(pod), references(pod), self.woken.set)

    def update(self, pod: Manifest) -> None:
        shown = [each["metadata"].get(key) for each in (self.pod, pod) for key in ("labels", "annotations")]
        self.pod = pod
        self.changed.set()
        if shown[:2] != shown[2:]:  # the downward API shows them
            self.woken.set()

    def save(self, container: ContainerRecord) -> None:
        self.record = self.record.having(container)
        self.folder.save(self.record)
        self.changed.set()

    def give_devices_back(self) -> None:
        """The pod's processes have ended for good: the scheduler may promise its GPUs to another as soon as the API
        shows that."""
        self.tools.devices.give_back(self.record.devices)
        self.record = replace(self.record, devices={})
        self.folder.save(self.record)

    def manifest(self, container: str) -> Manifest:
        return next(each for each in all_containers(self.pod) if each["name"] == container)

    def sources(self) -> Sources:
        named, namespace = references(self.pod), namespace_of(self.pod)
        return Sources(
            self.tools.objects.data(namespace, "configmaps", named),
            self.tools.objects.data(namespace, "secrets", named),
            self.tools.allocatable,
        )

    @property
    def place(self) -> Place:
        return Place(self.tools.node, self.record.address)

    def grounds(self, container: str) -> Grounds:
        folder = self.folder.container(container)
        return Grounds(
            place=self.place,
            programs=self.tools.programs,
            home=folder / "home",
            temporary=folder / "tmp",
            volumes=self.folder.volumes,
            kubeconfig=self.folder.kubeconfig,
            termination_log=self.folder.termination_log(container),
            devices=self.record.devices.get(container, ()),
            address_of=self.tools.address_of,
        )

    async def post(self, reason: str, message: str, warning: bool = False) -> None:
        await self.tools.events.post("Pod", self.pod, reason, message, warning)
