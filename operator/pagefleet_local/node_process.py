"""How the process node is started: the flags of `python -m pagefleet_local.node`, and what its signals mean.

SIGTERM ends the node and every pod on it, each within the grace that is given here at most: `pagefleet down`. A node
that is killed or crashes leaves its pods running; the next one adopts them.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.control_plane import KUBELET_CLIENT, ControlPlane
from pagefleet_local.processes import Program

NODE = "node"
STOP_GRACE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What the fleet says to its node; the rest (CPUs, memory, GPUs) the node finds out itself."""

    name: str
    folder: Path  # of the pods: volumes, logs, what adoption needs
    port: int  # of the logs that the API server fetches, on 127.0.0.1
    pod_range: str  # loopback addresses, one for each pod
    service_range: str  # loopback addresses on which the node forwards to Ready pods
    cache: Path  # what pods find at /pagefleet/cache: models and kernels are converted once for all of them
    images: tuple[str, ...]  # run as processes of this Python environment; any other ends in ImagePullBackOff


def node_program(settings: NodeSettings, plane: ControlPlane) -> Program:
    """Return the command that runs the node with a kubelet's rights and no more."""
    user = f"system:node:{settings.name}"
    kubeconfig = plane.kubeconfig_for(NODE, user, "system:nodes")
    serving = plane.serving_pair("node-serving", user, ["127.0.0.1", "localhost"])
    flags: dict[str, object] = {
        "name": settings.name,
        "folder": settings.folder,
        "kubeconfig": kubeconfig,
        "port": settings.port,
        "serving-certificate": serving.certificate,
        "serving-key": serving.key,
        "client-authority": plane.authority,
        "client-name": KUBELET_CLIENT,
        "pod-range": settings.pod_range,
        "service-range": settings.service_range,
        "cache": settings.cache,
        "stop-grace-seconds": STOP_GRACE_SECONDS,
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    arguments += [f"--image={image}" for image in settings.images]
    # -P: a file in the working directory must not stand in for a module.
    command = [sys.executable, "-P", "-m", "pagefleet_local.node", *arguments]
    return Program(NODE, command, {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ})
