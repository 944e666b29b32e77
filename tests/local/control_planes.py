"""Real control planes for tests: etcd, API server, controllers and scheduler on loopback, thrown away at the end.

A test that uses one is marked `cluster`; most take the fixture `control_plane`. The programs come from the folder that
PAGEFLEET_KUBERNETES names, else they are built.
"""

import os
import sys
from pathlib import Path

from pagefleet_local.binaries import find_binaries
from pagefleet_local.control_plane import ControlPlane
from pagefleet_local.folders import cache_folder


def binaries() -> dict[str, Path]:
    return find_binaries(None, os.environ, cache_folder(os.environ), lambda text: print(text, file=sys.stderr))


def throwaway(folder: Path) -> ControlPlane:
    """Return a control plane in a new folder; it does not survive a power cut, and starts faster."""
    return ControlPlane(folder, binaries(), durable=False)
