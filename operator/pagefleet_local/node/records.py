"""What the node knows of a pod that the API doesn't: kept in the pod's folder, so that a restarted node finds it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    """`born` tells the process from a later one with the same number."""

    pid: int
    born: str
    started_at: float


@dataclass(frozen=True)
class Terminated:
    exit_code: int
    reason: str
    message: str
    started_at: float
    finished_at: float


State = Waiting | Running | Terminated


@dataclass(frozen=True)
class ContainerRecord:
    name: str
    state: State = Waiting("ContainerCreating")
    last: Terminated | None = None
    num_starts: int = 0
    started: bool = False
    ready: bool = False
    backoff_seconds: float = 0.0
    not_before: float = 0.0

    @property
    def num_restarts(self) -> int:
        return max(self.num_starts - 1, 0)


@dataclass(frozen=True)
class PodRecord:
    uid: str
    namespace: str
    name: str
    address: str
    grace_seconds: float
    seen_at: float
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    containers: Mapping[str, ContainerRecord] = field(default_factory=dict)

    def container(self, name: str) -> ContainerRecord:
        return self.containers.get(name) or ContainerRecord(name)

    def having(self, container: ContainerRecord) -> "PodRecord":
        return replace(self, containers={**self.containers, container.name: container})


_STATES: dict[str, type[Waiting] | type[Running] | type[Terminated]] = {
    "waiting": Waiting,
    "running": Running,
    "terminated": Terminated,
}


def to_json(record: PodRecord) -> dict[str, Any]:
    value = asdict(record)
    for name, container in record.containers.items():
        kind = next(key for key, state in _STATES.items() if isinstance(container.state, state))
        value["containers"][name]["state"] = {kind: asdict(container.state)}
    return value


def from_json(value: dict[str, Any]) -> PodRecord:
    containers = {name: _container(each) for name, each in value["containers"].items()}
    devices = {name: tuple(each) for name, each in value["devices"].items()}
    return PodRecord(**{**value, "containers": containers, "devices": devices})


def _container(value: dict[str, Any]) -> ContainerRecord:
    ((kind, state),) = value["state"].items()
    last = Terminated(**value["last"]) if value["last"] else None
    return ContainerRecord(**{**value, "state": _STATES[kind](**state), "last": last})
