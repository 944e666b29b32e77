"""Where things are kept that outlive a command: what can be made again, and what a fleet is."""

from collections.abc import Mapping
from pathlib import Path

from pagefleet_contract.names import ENV_CACHE

ENV_STATE = "PAGEFLEET_STATE"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of what can be built or fetched again."""
    if named := environment.get(ENV_CACHE):
        return Path(named).expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pagefleet"


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the fleet that a command means when it names none."""
    if named := environment.get(ENV_STATE):
        return Path(named).expanduser()
    return Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "pagefleet"
