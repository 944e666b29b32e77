"""What this machine has: CPUs, memory, GPUs; and the Node object that says so."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.node.pods import Manifest
from pagefleet_local.node.status import timestamp

GPU_RESOURCE = "nvidia.com/gpu"
MAX_PODS = 250
# `GPU 0: NVIDIA H200 (UUID: GPU-…)`, and below it, indented, `MIG 1g.18gb Device 0: (UUID: MIG-…)`.
_LISTED_GPU = re.compile(r"^(\s*MIG )?.*\(UUID: ([^)]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Capacity:
    cpus: str
    memory: str
    gpus: tuple[str, ...]
    extended: Mapping[str, str]

    def resources(self) -> dict[str, str]:
        """Return what pods may ask of the node, by resource name."""
        resources = {"cpu": self.cpus, "memory": self.memory, "pods": str(MAX_PODS), **self.extended}
        if self.gpus:
            resources[GPU_RESOURCE] = str(len(self.gpus))
        return resources


def machine_cpus() -> str:
    return str(len(os.sched_getaffinity(0)))


def machine_memory() -> str:
    kibibytes = next(
        line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")
    )
    return f"{kibibytes}Ki"


def machine_gpus() -> tuple[str, ...]:
    """Return the ids of the machine's GPUs as its driver's own tool tells them; none where there is no tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    answer = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False)
    return listed_gpus(answer.stdout) if answer.returncode == 0 else ()


def listed_gpus(listing: str) -> tuple[str, ...]:
    """Return the ids that `nvidia-smi -L` lists: GPUs, or the instances that one is divided into in its stead."""
    found: list[str] = []
    whole = False  # whether the last id is that of a GPU that may yet turn out to be divided
    for is_instance, identity in _LISTED_GPU.findall(listing):
        if is_instance and whole:
            found.pop()
        found.append(identity)
        whole = not is_instance
    return tuple(found)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def node_object(name: str) -> Manifest:
    machine = "amd64" if platform.machine() == "x86_64" else "arm64" if platform.machine() == "aarch64" else "unknown"
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": machine}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def node_status(
    name: str, capacity: Capacity, port: int, images: Sequence[str], version: str, now: float, since: float
) -> Manifest:
    """Return the Node's status: what it has, where its log port is, and that it is well."""
    resources = capacity.resources()
    release = os.uname()
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "images": [{"names": [image], "sizeBytes": 0} for image in images],
        "nodeInfo": {
            "machineID": boot_id().replace("-", ""),
            "systemUUID": boot_id(),
            "bootID": boot_id(),
            "kernelVersion": release.release,
            "osImage": "processes of this machine, not isolated",
            "containerRuntimeVersion": f"process://{platform.python_version()}",
            "kubeletVersion": f"v{version}-pagefleet",
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": node_object(name)["metadata"]["labels"]["kubernetes.io/arch"],
        },
        "conditions": [
            _condition("MemoryPressure", False, "ProcessNodeDoesNotWatchMemory", now, since),
            _condition("DiskPressure", False, "ProcessNodeDoesNotWatchDisks", now, since),
            _condition("PIDPressure", False, "ProcessNodeDoesNotWatchProcesses", now, since),
            _condition("Ready", True, "ProcessNodeReady", now, since, f"runs pods as processes of {sys.prefix}"),
        ],
    }


def _condition(kind: str, holds: bool, reason: str, now: float, since: float, message: str = "") -> Manifest:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": timestamp(since),
    }
