"""How the process node is started and stopped: the flags of `python -m pagefleet_local.node`.

A node that ends, however it ends, leaves its pods' processes running, and the next one adopts them; `down` ends both.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.control_plane import KUBELET_CLIENT, ControlPlane
from pagefleet_local.errors import FleetError
from pagefleet_local.processes import Program

NODE = "node"
# -P: a file in the working directory must not stand in for a module.
_COMMAND = (sys.executable, "-P", "-m", "pagefleet_local.node")
STOP_GRACE_SECONDS = 10
_PROMISED_PER_CPU = 4


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What the fleet says to its node; the rest (CPUs, memory, GPUs) the node finds out itself."""

    name: str
    folder: Path  # of the pods: volumes, logs, what adoption needs
    port: int  # of the logs that the API server fetches, on 127.0.0.1
    pod_range: str  # loopback addresses, one for each pod
    cache: Path  # what pods find at the cache's mount path: models are converted once for all of them
    pretended: tuple[str, ...]  # NAME=COUNT: extended resources without a device behind them
    images: tuple[str, ...]  # run as processes of this Python environment; any other ends in ImagePullBackOff


def node_program(settings: NodeSettings, plane: ControlPlane) -> Program:
    """Return the command that runs the node with a kubelet's rights and no more."""
    user = f"system:node:{settings.name}"
    kubeconfig = plane.kubeconfig_for(NODE, user, "system:nodes")
    serving = plane.serving_pair("node-serving", user, ["127.0.0.1", "localhost"])
    flags: dict[str, object] = {
        "name": settings.name,
        "state": settings.folder,
        "kubeconfig": kubeconfig,
        "kubelet-port": settings.port,
        "tls-cert": serving.certificate,
        "tls-key": serving.key,
        "client-ca": plane.authority,
        "client-name": KUBELET_CLIENT,
        "cache": settings.cache,
        "address-range": settings.pod_range,
        # Processes share the CPUs as they come, nothing is set aside: what pods ask for may exceed what there is, or
        # a replica on every core would leave no room for router and operator.
        "cpus": _PROMISED_PER_CPU * (os.cpu_count() or 1),
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    arguments += [f"--image={image}" for image in settings.images]
    arguments += [f"--resource={resource}" for resource in settings.pretended]
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return Program(NODE, [*_COMMAND, "run", *arguments], environment)


def end_pods(folder: Path) -> None:
    """End the processes that a node left in its folder: those of every pod."""
    grace = [f"--state={folder}", f"--grace-seconds={STOP_GRACE_SECONDS}"]
    done = subprocess.run([*_COMMAND, "stop", *grace], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FleetError(f"the pods' processes could not be ended: {done.stderr.strip() or 'no reason was given'}")
