"""The control plane's programs: from a folder that the user names, else built once from our Go modules."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pagefleet_local.building import Recipe, build
from pagefleet_local.control_plane import API_SERVER, CONTROLLERS, ETCD, PROGRAMS, SCHEDULER
from pagefleet_local.errors import FleetError

ENV_BINARIES = "PAGEFLEET_KUBERNETES"
KUBERNETES_VERSION = "v1.36.3"

MODULES = Path(__file__).parent / "modules"
KUBERNETES = Recipe(
    MODULES / "kubernetes",
    {name: f"k8s.io/kubernetes/cmd/{name}" for name in (API_SERVER, CONTROLLERS, SCHEDULER)},
    # Without it every client sees v0.0.0-master.
    f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
    needed_bytes=5 << 30,
)
STORE = Recipe(MODULES / "etcd", {ETCD: "go.etcd.io/etcd/server/v3"})


def find_binaries(
    named: Path | None, environment: Mapping[str, str], cache: Path, report: Callable[[str], None]
) -> dict[str, Path]:
    """Return each program's file. A folder named by flag or environment wins, and must hold all of them."""
    folder = named or (Path(environment[ENV_BINARIES]).expanduser() if environment.get(ENV_BINARIES) else None)
    if folder is None:
        kubernetes = build(cache, KUBERNETES, lambda text: report(f"step 1 of 2, {text}"))
        store = build(cache, STORE, lambda text: report(f"step 2 of 2, {text}"))
        return {name: (store if name == ETCD else kubernetes) / name for name in PROGRAMS}
    if missing := [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]:
        raise FleetError(
            f"{folder} lacks {', '.join(missing)}; it must hold the programs {', '.join(PROGRAMS)}"
            f" of Kubernetes 1.33 or newer, or name no folder and they are built"
        )
    return {name: folder / name for name in PROGRAMS}
