"""A real node inside namespaces of its own: control plane, containerd, kubelet, kube-proxy and DNS as processes.

What runs here is ended by the kernel: it all hangs on the first process of a process namespace.
"""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import kubernetes

from pagefleet_local.control_plane import ControlPlane, Network
from pagefleet_local.processes import Processes, Program
from pagefleet_local.waiting import attempts
from tests.cluster import node_settings as settings
from tests.cluster.machine import SETTINGS, BedFault

CONTAINERD, KUBELET, PROXY, DNS = "containerd", "kubelet", "kube-proxy", "dns"
_READY_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Programs:
    """Files by name: those of the control plane and of the node. `plugins` is the folder of the CNI plug-ins."""

    files: Mapping[str, Path]
    plugins: Path


@dataclass(frozen=True, slots=True)
class Node:
    state: Path
    programs: Programs
    control_group: str
    report: Callable[[str], None]

    @property
    def places(self) -> settings.Places:
        return settings.Places(self.state)

    @property
    def processes(self) -> Processes:
        return Processes(self.state / "node")

    @property
    def control_plane(self) -> ControlPlane:
        network = Network(settings.NODE_ADDRESS, settings.SERVICE_RANGE, settings.POD_RANGE)
        return ControlPlane(self.state / "control-plane", self.programs.files, network, durable=False)

    def start(self, archives: Sequence[Path]) -> None:
        """Return when the node is Ready and has the images."""
        began = time.monotonic()
        make_place_for_a_node(self.state)
        self._start_containerd()
        with ThreadPoolExecutor() as pool:
            imports = pool.submit(self._import, archives)
            self.control_plane.start()
            self.report(f"control plane ready after {time.monotonic() - began:.1f} s")
            self._start_kubelet()
            self._start_proxy()
            self._start_dns()
            imports.result()
        self._wait("a Ready node", self._is_ready)
        self.report(f"node ready after {time.monotonic() - began:.1f} s")

    def _start_containerd(self) -> None:
        runc = shutil.which("runc")
        assert runc is not None  # the machine was asked before
        path = f"{self.programs.files[CONTAINERD].parent}:{os.environ['PATH']}"  # its shim stands beside it
        self._write("cni/10-pods.conflist", settings.pod_network(self.places))
        file = self._write("containerd.toml", settings.containerd(self.places, self.programs.plugins, runc))
        self._start(CONTAINERD, "--config", file, PATH=path)
        self._wait("containerd", lambda: self._ctr("version").returncode == 0)

    def _import(self, archives: Sequence[Path]) -> None:
        for archive in archives:
            began = time.monotonic()
            done = self._ctr("images", "import", "--local", str(archive))
            if done.returncode != 0:
                raise BedFault(f"containerd refuses {archive}: {done.stderr.strip()[-500:]}")
            self.report(f"imported {archive.name} in {time.monotonic() - began:.1f} s")

    def _start_kubelet(self) -> None:
        user = f"system:node:{settings.NODE_NAME}"
        pair = self.control_plane.serving_pair("kubelet", user, [settings.NODE_NAME, settings.NODE_ADDRESS])
        kubeconfig = self.control_plane.kubeconfig_for("kubelet-client", user, "system:nodes")
        text = settings.kubelet(
            self.places, self.control_plane.authority, pair.certificate, pair.key, self.control_group
        )
        self._start(
            KUBELET,
            f"--config={self._write('kubelet.json', text)}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.state / 'kubelet'}",
            f"--hostname-override={settings.NODE_NAME}",
            f"--node-ip={settings.NODE_ADDRESS}",
        )

    def _start_proxy(self) -> None:
        kubeconfig = self.control_plane.kubeconfig_for("kube-proxy", "system:kube-proxy")
        self._start(PROXY, f"--config={self._write('kube-proxy.json', settings.kube_proxy(kubeconfig))}")

    def _start_dns(self) -> None:
        file = self._write("Corefile", settings.dns(self.control_plane.kubeconfig))
        self._start(DNS, "-conf", file)
        self._wait("the DNS server", lambda: _answers("http://127.0.0.1:8181/ready"))

    def _start(self, name: str, *arguments: str | Path, **environment: str) -> None:
        command = [str(self.programs.files[name]), *map(str, arguments)]
        self.processes.start(Program(name, command, {"PATH": os.environ["PATH"], **environment}))

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        for _ in attempts(_READY_SECONDS):
            if condition():
                return
            for name in (CONTAINERD, KUBELET, PROXY, DNS):
                if self.processes.log_of(name).exists() and not self.processes.find(name):
                    raise BedFault(f"{name} ended at its start:\n{self.processes.tail_of(name)}")
        tails = "\n".join(f"{name}: {self.processes.tail_of(name, 3)}" for name in (CONTAINERD, KUBELET))
        raise BedFault(f"no {what} within {_READY_SECONDS} s\n{tails}")

    def _is_ready(self) -> bool:
        api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(self.control_plane.kubeconfig)))
        conditions = [each for node in api.list_node().items for each in (node.status and node.status.conditions) or []]
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def _ctr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(self.programs.files["ctr"]), "--address", str(self.places.socket), "--namespace", "k8s.io"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    def _write(self, name: str, text: str) -> Path:
        file = self.state / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


def make_place_for_a_node(state: Path) -> None:
    """Change what this mount and network namespace sees; the machine's own files stay as they are."""
    for folder in ("/etc", "/var/lib", "/run"):
        layers = state / "over" / folder.strip("/").replace("/", "-")
        upper, work = layers / "upper", layers / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        upper.chmod(0o755)
        _run(f"mount -t overlay -o lowerdir={folder},upperdir={upper},workdir={work} overlay {folder}")
    _run("mount --make-rshared /")  # volumes that the kubelet mounts must reach the containers
    for setting in (Path("/proc/sys") / name for name in SETTINGS):
        if setting.exists():
            own = state / "settings" / setting.name
            own.parent.mkdir(exist_ok=True)
            own.write_text(setting.read_text())
            _run(f"mount --bind {own} {setting}")
    for command in settings.NETWORK_COMMANDS:
        _run(command)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").write_text(settings.resolver())
    volumes = settings.Places(state).volumes
    volumes.mkdir()
    volumes.chmod(0o777)


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BedFault(f"`{command}` failed: {done.stderr.strip()}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
