"""Which GPU belongs to which container."""

from collections.abc import Iterable, Mapping, Sequence

from pagefleet_local.node.machine import GPU_RESOURCE
from pagefleet_local.node.pods import Manifest, all_containers
from pagefleet_local.node.quantities import quantity


class DevicesUsedUp(Exception):
    pass


class Devices:
    """The GPUs of the machine, and those that pods have."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._free = list(gpus)
        self._has_any = bool(gpus)

    def keep(self, devices: Mapping[str, Iterable[str]]) -> None:
        taken = {gpu for gpus in devices.values() for gpu in gpus}
        self._free = [gpu for gpu in self._free if gpu not in taken]

    def take(self, pod: Manifest) -> dict[str, tuple[str, ...]]:
        """Return the GPUs of each container. Raises DevicesUsedUp where there are too few.

        A machine without GPUs can only be asked for ones that it pretends to have: nothing is handed out for them.
        """
        if not self._has_any:
            return {}
        wanted = {container["name"]: _count(container) for container in all_containers(pod)}
        if sum(wanted.values()) > len(self._free):
            raise DevicesUsedUp(
                f"the pod asks for {sum(wanted.values())} of {GPU_RESOURCE}; {len(self._free)} are free"
            )
        return {name: tuple(self._free.pop(0) for _ in range(count)) for name, count in wanted.items() if count}

    def give_back(self, devices: Mapping[str, Iterable[str]]) -> None:
        self._free += [gpu for gpus in devices.values() for gpu in gpus]


def _count(container: Manifest) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(quantity(limits.get(GPU_RESOURCE, "0")))
