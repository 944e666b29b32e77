"""A thousand services at once: `python -m tests.bench.operator_scale` creates them on a real control plane, kwok plays
their pods, one program answers for all their addresses, and the API server's audit log says who wrote what.

It measures the time until all are Ready, the operator's writes beyond the children, its memory, and what it writes
while nothing happens; `build/bench/operator_scale.json` keeps it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from pagefleet_contract.names import KIND
from pagefleet_local.building import Recipe, build
from pagefleet_local.control_plane import ControlPlane, running
from pagefleet_local.folders import cache_folder
from tests.bench.figures import Goal, goal
from tests.e2e.cluster import Cluster, holds
from tests.e2e.services import service
from tests.local.control_planes import binaries
from tests.operator.cluster.bed import CRD, Bed, Operator

ROOT = Path(__file__).parents[2]
KWOK = Recipe(ROOT / "tests/bench/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
REPORT = ROOT / "build/bench/operator_scale.json"
NAMESPACE = "scale"
_POD_NETWORK = "127.80.0.0/16"
_FIRST_POD = "127.80.0.1"

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "users": [f"operator-of-{NAMESPACE}"], "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class Scale:
    """What was measured."""

    num_services: int
    seconds_to_create: float
    seconds_to_ready: float
    num_children: int
    writes: Mapping[str, int]  # by resource and verb, until all were Ready and quiet
    idle_seconds: float
    idle_writes: int
    resident_mb: float  # at its highest
    loop_lag_seconds: float

    def goals(self) -> list[Goal]:
        beyond = (sum(self.writes.values()) - self.num_children) / self.num_services
        return [
            goal("writes for each service beyond its children", 2, [beyond], at_least=False, unit="writes"),
            goal("resident memory of the operator at its highest", 150, [self.resident_mb], at_least=False, unit="MB"),
            goal("writes in the idle time", 2, [self.idle_writes], at_least=False, unit="writes"),
        ]


def measure(num_services: int, idle_seconds: float) -> Scale:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        audit = folder / "audit.log"
        control_plane = stack.enter_context(running(_control_plane(folder, audit)))
        cluster = Cluster(control_plane.kubeconfig)
        cluster.apply(yaml.safe_load(CRD.read_text()))
        bed = Bed(cluster, control_plane, NAMESPACE, folder)
        bed.install()
        _make_node(cluster)
        stack.enter_context(_kwok(control_plane))
        stack.enter_context(_replicas(4 * num_services))
        operator = stack.enter_context(bed.operator(figuresSeconds=15, leaseSeconds=60).running())
        return _measure(cluster, operator, audit, num_services, idle_seconds)


def _measure(cluster: Cluster, operator: Operator, audit: Path, num_services: int, idle_seconds: float) -> Scale:
    began = time.monotonic()
    cluster.create(service(NAMESPACE, "s0000"))  # alone: the client learns the kind by it, and not in many threads
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: cluster.create(service(NAMESPACE, f"s{index:04}")), range(1, num_services)))
    created = time.monotonic() - began
    print(f"{num_services} services created in {created:.0f} s", flush=True)
    cluster.wait(
        "all services Ready",
        KIND,
        NAMESPACE,
        lambda found: len(found) == num_services and all(holds(item, "Ready") for item in found),
        seconds=max(300.0, num_services * 1.0),
    )
    ready = time.monotonic() - began
    print(f"all Ready after {ready:.0f} s", flush=True)
    writes = _until_quiet(audit)
    time.sleep(idle_seconds)
    return Scale(
        num_services=num_services,
        seconds_to_create=round(created, 1),
        seconds_to_ready=round(ready, 1),
        num_children=_num_children(cluster),
        writes=dict(writes),
        idle_seconds=idle_seconds,
        idle_writes=sum(_writes(audit).values()) - sum(writes.values()),
        resident_mb=round(_highest_resident_mb(operator), 1),
        loop_lag_seconds=operator.metric("pagefleet_operator_loop_lag_seconds"),
    )


def _until_quiet(audit: Path) -> Counter[str]:
    """Return the writes once there were none for ten seconds."""
    before = _writes(audit)
    while True:
        time.sleep(10)
        now = _writes(audit)
        if now == before:
            return now
        before = now


def _writes(audit: Path) -> Counter[str]:
    """Count the operator's writes by verb and resource; its Lease is no service's."""
    found: Counter[str] = Counter()
    for line in audit.read_text().splitlines():
        event = json.loads(line)
        about = event["objectRef"]
        if about["resource"] != "leases" and event["responseStatus"]["code"] < 400:
            found[
                f"{event['verb']} {about['resource']}{'/' + about['subresource'] if 'subresource' in about else ''}"
            ] += 1
    return found


def _num_children(cluster: Cluster) -> int:
    kinds = ("Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy")
    selector = "app.kubernetes.io/managed-by=pagefleet"
    return sum(len(cluster.all(kind, NAMESPACE, selector)) for kind in kinds)


def _highest_resident_mb(operator: Operator) -> float:
    assert operator.process is not None
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


def _control_plane(folder: Path, audit: Path) -> ControlPlane:
    policy = folder / "audit.yaml"
    policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
    fast = ["--kube-api-qps=500", "--kube-api-burst=1000"]
    patient = "--node-monitor-grace-period=1h"  # the played node's heartbeat is late on a busy machine
    return ControlPlane(
        folder / "state",
        binaries(),
        durable=False,
        extra_arguments={
            "kube-apiserver": [f"--audit-policy-file={policy}", f"--audit-log-path={audit}"],
            "kube-controller-manager": [*fast, patient],
            "kube-scheduler": fast,
        },
    )


def _make_node(cluster: Cluster) -> None:
    room = {"cpu": "100k", "memory": "100Ti", "pods": "100k"}
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "played", "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "status": {"allocatable": room, "capacity": room},
        }
    )


@contextmanager
def _kwok(control_plane: ControlPlane) -> Iterator[None]:
    program = build(cache_folder(os.environ), KWOK, print) / "kwok"
    command = [str(program), f"--kubeconfig={control_plane.kubeconfig}", "--manage-all-nodes", f"--cidr={_POD_NETWORK}"]
    with _process(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        yield


@contextmanager
def _replicas(count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.many_replicas", _FIRST_POD, str(count)]
    with _process(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        yield


@contextmanager
def _process(command: list[str], **given: Any) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(command, cwd=ROOT, **given) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=120)
    given = parser.parse_args()
    found = measure(given.services, given.idle_seconds)
    print(f"Ready after {found.seconds_to_ready:.0f} s; {found.num_children} children; writes {dict(found.writes)}")
    goals = found.goals()
    print("\n".join(each.line() for each in goals))
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(asdict(found), indent=2) + "\n")
    raise SystemExit(0 if all(each.met for each in goals) else 1)


if __name__ == "__main__":
    main()
