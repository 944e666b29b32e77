"""Operators as processes against a real control plane, with the rights of the contract's table and no more.

There is no node: tests play the pods' life by writing their status.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import yaml

from pagefleet_contract.names import (
    ENV_POD_NAME,
    ENV_POD_NAMESPACE,
    PATH_LIVE,
    PATH_METRICS,
    PATH_READY,
    ROUTER_SERVICE_ACCOUNT,
)
from pagefleet_contract.rights import OPERATOR_RIGHTS
from pagefleet_local.control_plane import ControlPlane
from tests.e2e.cluster import Cluster

LEASE = "pagefleet-operator"
CRD = Path(__file__).parents[3] / "crds/inferenceservices.yaml"
_RBAC = "rbac.authorization.k8s.io/v1"


@dataclass
class Bed:
    """One namespace with an operator's Lease and roles."""

    cluster: Cluster
    control_plane: ControlPlane
    namespace: str
    folder: Path

    @property
    def user(self) -> str:
        return f"operator-of-{self.namespace}"

    def operator(self, pod_name: str = "operator-1", kubeconfig: Path | None = None, **settings: Any) -> "Operator":
        """Return an operator that isn't started; settings by their names in the file."""
        return Operator(self, pod_name, kubeconfig or self.control_plane.kubeconfig_for(self.user, self.user), settings)

    def install(self) -> None:
        """What the chart renders around an operator."""
        self.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": ROUTER_SERVICE_ACCOUNT, "namespace": self.namespace},
            }
        )
        self.cluster.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE, "namespace": self.namespace},
            }
        )
        self.grant()

    def grant(self, without: tuple[str, ...] = ()) -> None:
        """Give the operator the rights of the table, but for some resources."""
        rules = [
            {
                "apiGroups": [right.group],
                "resources": [resource for resource in right.resources if resource not in without],
                "verbs": list(right.verbs),
                **({"resourceNames": [LEASE]} if right.named else {}),
            }
            for right in OPERATOR_RIGHTS
            if set(right.resources) - set(without)
        ]
        metadata = {"name": "operator", "namespace": self.namespace}
        self.cluster.apply({"apiVersion": _RBAC, "kind": "Role", "metadata": metadata, "rules": rules})
        self.cluster.apply(
            {
                "apiVersion": _RBAC,
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
                "subjects": [{"kind": "User", "name": self.user, "apiGroup": "rbac.authorization.k8s.io"}],
            }
        )


@dataclass
class Operator:
    """One operator process."""

    bed: Bed
    pod_name: str
    kubeconfig: Path
    settings: Mapping[str, Any]
    port: int = field(default_factory=lambda: _free_port())
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log_file(self) -> Path:
        return self.bed.folder / f"{self.pod_name}.log"

    def start(self) -> "Operator":
        settings, key = self.bed.folder / f"{self.pod_name}.yaml", self.bed.folder / "root-key"
        settings.write_text(yaml.safe_dump({"figuresSeconds": 1, "hubUrl": "", **self.settings}))
        key.write_text("0123456789abcdef" * 2)
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            ENV_POD_NAME: self.pod_name,
            ENV_POD_NAMESPACE: self.bed.namespace,
        }
        command = [sys.executable, "-m", "pagefleet_operator", "--settings", str(settings)]
        command += ["--root-key-file", str(key), "--host", "127.0.0.1", "--port", str(self.port)]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return self

    @contextmanager
    def running(self) -> Iterator["Operator"]:
        """Started and ready; killed at the end where it still runs."""
        try:
            self.start().wait_ready()
            yield self
        finally:
            self.kill()

    def wait_ready(self, seconds: float = 60) -> None:
        wait_until("the operator is ready", lambda: self.answers(PATH_READY) == 200, seconds, self.log)

    def answers(self, path: str) -> int | None:
        """Return the status, or None where nobody answers."""
        try:
            return httpx2.get(self.url(path), timeout=5, trust_env=False).status_code
        except httpx2.HTTPError:
            return None

    def text(self, path: str) -> str:
        return httpx2.get(self.url(path), timeout=5, trust_env=False).text

    def is_live(self) -> bool:
        return self.answers(PATH_LIVE) == 200

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that bear these labels."""
        total = 0.0
        for line in httpx2.get(self.url(PATH_METRICS), trust_env=False).text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{key}="{found}"' in series for key, found in labels.items()):
                total += float(value)
        return total

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def log_lines(self) -> list[dict[str, Any]]:
        written = self.log().rpartition("\n")[0]  # the last line may be half of one
        return [json.loads(line) for line in written.splitlines() if line.startswith("{")]

    def says(self, text: str) -> bool:
        return any(text in line.get("message", "") for line in self.log_lines())

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, seconds: float = 30) -> int:
        """Ask it to end; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(
    what: str, condition: Callable[[], bool], seconds: float = 60, told: Callable[[], str] = lambda: ""
) -> None:
    """For what no watch tells. Fails with what is `told` when time runs out."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}\n{told()[-4000:]}")
        time.sleep(0.1)


def holds_for(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition holds all that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(0.2)
    return True
