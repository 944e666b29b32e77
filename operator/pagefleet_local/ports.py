"""Ports that a fleet chooses once and keeps, so that its kubeconfig stays good from `down` to `up`."""

import json
import random
import socket
from collections.abc import Mapping
from pathlib import Path

from pagefleet_local.errors import FleetError

# Below the range from which Linux takes ports for outgoing connections: one of those may hold a port for a moment.
_FIRST, _LAST = 20000, 30000


def kept_ports(file: Path, must_be_free: Mapping[str, bool]) -> dict[str, int]:
    """Return a port for each name: the one in the file, else a free one, which is written there.

    A kept port that must be free and isn't (another program took it meanwhile) is replaced.
    """
    kept = read_ports(file)
    chosen = dict(kept)
    for name, free in must_be_free.items():
        if name not in chosen or (free and not is_free(chosen[name])):
            chosen[name] = _free_port(set(chosen.values()))
    if chosen != kept:
        new = file.with_suffix(".new")
        new.write_text(json.dumps(chosen, indent=1))
        new.replace(file)
    return chosen


def read_ports(file: Path) -> dict[str, int]:
    ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    return ports


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _free_port(taken: set[int]) -> int:
    ports = [port for port in range(_FIRST, _LAST) if port not in taken]
    random.shuffle(ports)
    for port in ports:
        if is_free(port):
            return port
    raise FleetError(f"no port between {_FIRST} and {_LAST} is free on this machine; stop what holds them")
