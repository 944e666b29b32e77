"""A real node for the length of a command: `python -m tests.cluster.bed --image light -- COMMAND`.

`--prepare` in place of the command only builds what is missing, of all that the end-to-end tests need.

COMMAND runs in the node's namespaces, with KUBECONFIG set and what tests/e2e/given_cluster.py names: it reaches the API
server, pods and ClusterIPs, and nothing outside. When it ends, everything ends, and the machine is as it was found.
Programs and images are built when they are missing, into the cache folder (PAGEFLEET_CACHE).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pagefleet_local.binaries import KUBERNETES, find_binaries
from pagefleet_local.building import Recipe, build
from pagefleet_local.errors import FleetError
from pagefleet_local.folders import cache_folder
from pagefleet_local.tools import find_tools
from tests.cluster import machine
from tests.cluster.image_builds import IMAGES, ROOT, Builder
from tests.cluster.machine import BedFault
from tests.cluster.node import CONTAINERD, DNS, KUBELET, PROXY, Node, Programs
from tests.cluster.node_settings import PAUSE_IMAGE, Places
from tests.e2e import given_cluster

_MODULE = Path(__file__).parent / "node_programs"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd/"
_PLUGINS = "github.com/containernetworking/plugins/plugins/"
NODE = Recipe(
    _MODULE,
    {
        **{name: f"{_CONTAINERD}{name}" for name in (CONTAINERD, "ctr", "containerd-shim-runc-v2")},
        **{name: f"{_PLUGINS}main/{name}" for name in ("bridge", "loopback")},
        "host-local": f"{_PLUGINS}ipam/host-local",
        DNS: "./dns",
        "pause": "./pause",
    },
)
KUBERNETES_NODE = replace(KUBERNETES, packages={name: f"k8s.io/kubernetes/cmd/{name}" for name in (KUBELET, PROXY)})


@dataclass(frozen=True, slots=True)
class Needed:
    """What a node and its command take with them, all of it there."""

    programs: Mapping[str, Path]
    plugins: Path
    archives: Sequence[Path]
    path: str  # of the command's environment


@dataclass(frozen=True, slots=True)
class Order:
    """What the outer process tells the inner one, the first of the new namespaces."""

    state: str
    control_group: str
    programs: Mapping[str, str]
    plugins: str
    archives: Sequence[str]
    environment: Mapping[str, str]
    command: Sequence[str]

    def run(self) -> int:
        """Start the node and run the command; the namespaces end with this process."""
        programs = Programs({name: Path(file) for name, file in self.programs.items()}, Path(self.plugins))
        node = Node(Path(self.state), programs, self.control_group, say)
        node.start([Path(archive) for archive in self.archives])
        kubeconfig = str(node.control_plane.kubeconfig)
        own = {"KUBECONFIG": kubeconfig, given_cluster.KUBECONFIG: kubeconfig, **self.environment}
        return subprocess.call(self.command, env={**os.environ, **own})


def say(text: str) -> None:
    print(f"bed: {text}", file=sys.stderr, flush=True)


def seldom(report: Callable[[str], None], seconds: float) -> Callable[[str], None]:
    """Return a report that is heard at most so often: a build tells every second how far it is."""
    said = float("-inf")

    def heard(text: str) -> None:
        nonlocal said
        if (now := time.monotonic()) - said >= seconds:
            said = now
            report(text)

    return heard


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return Order(**json.loads(Path(sys.argv[2]).read_text())).run()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", action="append", default=[], choices=IMAGES, help="image to build and bring along")
    parser.add_argument("--logs", type=Path, help="copy every program's log into this folder at the end")
    parser.add_argument("--or-skip", action="store_true", help="end with 0 where the machine can't have a node")
    parser.add_argument("--prepare", action="store_true", help="build what is missing, and end; takes no command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, after --")
    options = parser.parse_args()
    if not options.prepare and (options.command[:1] != ["--"] or not options.command[1:]):
        parser.error("name a command to run after --")
    try:
        if reason := machine.why_no_node():
            return _without_node(reason, options)
        machine.check_programs()
        needed = _prepare(options.image)
        return 0 if options.prepare else _run(needed, options.image, options.logs, options.command[1:])
    except (BedFault, FleetError) as fault:
        say(str(fault))
        return 1


def _without_node(reason: str, options: argparse.Namespace) -> int:
    if options.prepare:
        find_binaries(None, os.environ, cache_folder(os.environ), seldom(say, 20))  # for the process node
        return 0
    say(f"{reason}; not run: {' '.join(options.command[1:])}")
    return 0 if options.or_skip else 1


def _prepare(images: Sequence[str]) -> Needed:
    """Build what is missing, which must be now: there's no way to a registry from inside."""
    began = time.monotonic()
    cache = cache_folder(os.environ)
    files, plugins = _programs(cache)
    tools = find_tools(cache, say)
    path = os.pathsep.join([*sorted({str(tool.parent) for tool in tools.values()}), os.environ["PATH"]])
    builder = Builder(cache / "images", say)
    archives = [builder.program_image(PAUSE_IMAGE, files["pause"]), *(builder.archive(IMAGES[name]) for name in images)]
    say(f"programs and images are there after {time.monotonic() - began:.1f} s")
    return Needed(files, plugins, archives, path)


def _run(needed: Needed, images: Sequence[str], logs: Path | None, command: Sequence[str]) -> int:
    # A signal to end must not skip what is tidied up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    state = Path(tempfile.mkdtemp(prefix="pagefleet-bed-"))
    try:
        with machine.control_group(state.name) as control_group:
            environment = {given_cluster.IMAGES[name]: IMAGES[name].name for name in images}
            environment[given_cluster.VOLUMES] = str(Places(state).volumes)
            environment["PATH"] = needed.path
            order = Order(
                state=str(state),
                control_group=control_group,
                programs={name: str(file) for name, file in needed.programs.items()},
                plugins=str(needed.plugins),
                archives=[str(archive) for archive in needed.archives],
                environment=environment,
                command=command,
            )
            return _inside_namespaces(order, state / "order.json")
    finally:
        if logs:
            for folder in state.glob("*/logs"):
                shutil.copytree(folder, logs / folder.parent.name, dirs_exist_ok=True)
        shutil.rmtree(state)


def _inside_namespaces(order: Order, file: Path) -> int:
    """Run the order in a process whose end is the end of all that it started."""
    file.write_text(json.dumps({name: getattr(order, name) for name in Order.__slots__}))
    inner = [sys.executable, "-m", "tests.cluster.bed", "--inside", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.call([*machine.OWN_NAMESPACES, "--kill-child=KILL", *inner], env=environment)


def _programs(cache: Path) -> tuple[dict[str, Path], Path]:
    """Return the file of each program, and the folder of the network plug-ins."""
    report = seldom(say, 20)
    control_plane = find_binaries(None, os.environ, cache, report)
    kubernetes, node = build(cache, KUBERNETES_NODE, report), build(cache, NODE, report)
    own = {name: kubernetes / name for name in KUBERNETES_NODE.packages}
    return {**control_plane, **own, **{name: node / name for name in NODE.packages}}, node


if __name__ == "__main__":
    sys.exit(main())
