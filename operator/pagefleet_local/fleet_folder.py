"""The folder of one fleet: what it is made of, and what was decided once and kept from `down` to `up`."""

import json
import random
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pagefleet_local.errors import FleetError

# Services at 127.64 to 127.126, pods at 127.128 to 127.190; loopback addresses below are for people.
_NUM_NETWORKS = 63
_NODE_NAME_LENGTH = 50


@dataclass(frozen=True, slots=True)
class Decisions:
    """Two fleets of one machine should not hand out the same addresses; a node keeps its name if the host's changes."""

    network: int
    node_name: str
    # NAME=COUNT: what the node offers without a device behind it, for models that are only played.
    pretended: tuple[str, ...] = ()

    @property
    def service_range(self) -> str:
        return f"127.{64 + self.network}.0.0/16"

    @property
    def pod_range(self) -> str:
        return f"127.{128 + self.network}.0.0/16"


@dataclass(frozen=True, slots=True)
class FleetFolder:
    path: Path

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def lock(self) -> Path:
        """Held by whoever starts or stops the fleet. Beside the folder, which `down --purge` removes."""
        return self.path.with_name(f".{self.path.name}.lock")

    @property
    def pods(self) -> Path:
        return self.path / "node"

    @property
    def ports(self) -> Path:
        return self.path / "node-ports.json"

    @property
    def tools(self) -> Path:
        """What kubectl and Helm would otherwise keep among the user's files."""
        return self.path / "tools"

    @property
    def _decisions(self) -> Path:
        return self.path / "fleet.json"

    @property
    def exists(self) -> bool:
        return self._decisions.exists()

    def decisions(self) -> Decisions:
        """Return what was decided for this fleet, now if it is new."""
        if self.exists:
            found = json.loads(self._decisions.read_text())
            return Decisions(**found | {"pretended": tuple(found["pretended"])})
        if self.path.exists() and any(self.path.iterdir()):
            raise FleetError(
                f"{self.path} holds other files; a new fleet needs a folder of its own, name one with --state"
            )
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._decide(Decisions(_free_network(), _node_name(socket.gethostname())))

    def pretend(self, resources: Sequence[str]) -> None:
        """Decide anew what the node offers without a device behind it."""
        self._decide(replace(self.decisions(), pretended=tuple(resources)))

    def _decide(self, decisions: Decisions) -> Decisions:
        new = self._decisions.with_suffix(".new")
        new.write_text(json.dumps(asdict(decisions)))
        new.replace(self._decisions)
        return decisions

    def purge(self) -> None:
        """Remove everything of the fleet; a folder that holds no fleet is left alone."""
        if not self.exists:
            raise FleetError(f"{self.path} holds no fleet; nothing is removed")
        shutil.rmtree(self.path)


def _node_name(host: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", host.lower())[:_NODE_NAME_LENGTH].strip("-") or "this-machine"


def _free_network() -> int:
    """Return one on which nothing listens now; by chance, since a fleet that is down keeps its own."""
    listening = {int(line.split()[1][:8], 16) for line in _tcp_sockets() if line.split()[3] == "0A"}
    # The kernel writes an address in the machine's order: the first byte of the address is the lowest.
    busy = {address >> 8 & 0xFF for address in listening if address & 0xFF == 127}
    free = [number for number in range(_NUM_NETWORKS) if not {64 + number, 128 + number} & busy]
    return random.choice(free or range(_NUM_NETWORKS))


def _tcp_sockets() -> list[str]:
    return Path("/proc/net/tcp").read_text().splitlines()[1:]
