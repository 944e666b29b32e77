"""A process node on a real control plane, as tests use it: started, killed, started again, stopped with its pods."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagefleet_local.control_plane import KUBELET_CLIENT, ControlPlane
from pagefleet_local.waiting import attempts
from tests.e2e.cluster import Cluster, Object

IMAGE = "pagefleet.test/image:1"
NODE_COMMAND = (sys.executable, "-P", "-m", "pagefleet_local.node")


def node_kubeconfig(plane: ControlPlane, name: str) -> Path:
    return plane.kubeconfig_for(name, f"system:node:{name}", "system:nodes")


@dataclass
class RunningNode:
    name: str
    state: Path
    plane: ControlPlane
    extra: tuple[str, ...] = ()
    kubeconfig: Path | None = None  # if absent, the node's own for this control plane
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        user = f"system:node:{self.name}"
        serving = self.plane.serving_pair(f"{self.name}-serving", user, ["127.0.0.1"])
        flags = {
            "kubeconfig": self.kubeconfig or node_kubeconfig(self.plane, self.name),
            "name": self.name,
            "state": self.state,
            "tls-cert": serving.certificate,
            "tls-key": serving.key,
            "client-ca": self.plane.authority,
            "client-name": KUBELET_CLIENT,
            "image": IMAGE,
        }
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*NODE_COMMAND, "run", *(f"--{name}={value}" for name, value in flags.items()), *self.extra],
                env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """As a fault would: SIGKILL, nothing is put in order."""
        assert self.process
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process
        self.process.terminate()
        return self.process.wait(20)

    def stop_pods(self, grace_seconds: float = 5) -> None:
        command = [*NODE_COMMAND, "stop", f"--state={self.state}", f"--grace-seconds={grace_seconds}"]
        subprocess.run(command, check=True, capture_output=True)

    @property
    def log(self) -> str:
        return (self.state / "node.log").read_text()


def ready(cluster: Cluster, name: str, seconds: float = 20) -> None:
    cluster.wait(f"ready node {name}", "Node", None, lambda nodes: any(_is_ready(n, name) for n in nodes), seconds)


def _is_ready(node: Object, name: str) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return node["metadata"]["name"] == name and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def pod(name: str, namespace: str, *command: str, spec: Object | None = None, **container: Any) -> Object:
    """A pod with one container, named like the pod; what tests are about they name."""
    one = {"name": name, "image": IMAGE, "command": list(command), **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"containers": [one], "terminationGracePeriodSeconds": 2, **(spec or {})},
    }


def deployment(name: str, namespace: str, replicas: int, container: Object, spec: Object | None = None) -> Object:
    labels = {"app": name}
    one = {"name": name, "image": IMAGE, **container}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [one], "terminationGracePeriodSeconds": 5, **(spec or {})},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def service(name: str, namespace: str, port: int, target: int | str) -> Object:
    ports = [{"port": port, "targetPort": target}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": ports},
    }


def config_map(name: str, namespace: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def secret(name: str, namespace: str, **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def web(port: int = 8000, **more: object) -> Object:
    """A container that answers HTTP at the pod's address and is ready when it does."""
    probe = {"httpGet": {"port": port, "path": "/"}, "periodSeconds": 1}
    command = ["python", "-m", "http.server", str(port), "--bind", "$(PAGEFLEET_LISTEN_ADDRESS)"]
    return {"command": command, "readinessProbe": probe, "ports": [{"containerPort": port, "name": "http"}], **more}


def container_status(found: Object, index: int = 0) -> Object:
    statuses = found.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[index])


def state_reason(found: Object) -> str:
    state = container_status(found).get("state") or {}
    return str(next((each.get("reason", "") for each in state.values()), ""))


def is_ready(found: Object) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def eventually(what: str, condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what no watch shows."""
    began = time.monotonic()
    for _ in attempts(seconds, 0.02):
        if condition():
            return
    raise AssertionError(f"not {what} within {time.monotonic() - began:.1f} s")
