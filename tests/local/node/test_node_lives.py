"""Less common lives of pods on the process node: hooks, startup probes, deadlines, jobs, messages, GPUs, claims."""

from collections.abc import Iterator

import pytest

from pagefleet_local.control_plane import ControlPlane
from tests.e2e.cluster import Cluster, Object
from tests.local.node.nodes import IMAGE, RunningNode, container_status, is_ready, pod, ready, state_reason

pytestmark = pytest.mark.cluster

SLEEP = ("python", "-c", "import time; time.sleep(600)")
NEVER = {"restartPolicy": "Never"}


@pytest.fixture(scope="module")
def node(
    control_plane: ControlPlane, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    name = "gifted"
    state = tmp_path_factory.mktemp("node") / "state"
    node = RunningNode(name, state, control_plane, extra=("--gpus=GPU-a,GPU-b", "--resource=amd.com/gpu=1"))
    node.start()
    try:
        ready(cluster, name)
        yield node
    finally:
        node.end()
        node.stop_pods()
        cluster.delete("Node", None, name)


def until(cluster: Cluster, namespace: str, what: str, name: str, state: str) -> Object:
    """Wait for a phase, or a reason of the container's state."""
    return cluster.wait_for(
        what,
        "Pod",
        namespace,
        name,
        lambda found: found is not None and state in (found["status"].get("phase"), state_reason(found)),
        20,
    )


def test_a_pod_sees_its_own_gpus_and_another_waits_for_them(cluster: Cluster, namespace: str) -> None:
    show = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
    asks = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for name in ("one", "two", "three"):
        cluster.create(pod(name, namespace, "python", "-c", show, **asks))
    found = cluster.wait("two pods", "Pod", namespace, lambda found: sum(map(is_ready, found)) == 2)
    waiting = [p for p in found if not is_ready(p)]
    assert "Insufficient nvidia.com/gpu" in str(waiting[0]["status"].get("conditions"))
    running = [p["metadata"]["name"] for p in found if is_ready(p)]
    assert {cluster.logs(namespace, name) for name in running} == {"GPU-a\n", "GPU-b\n"}
    cluster.delete("Pod", namespace, running[0])
    cluster.wait_for(
        "its turn", "Pod", namespace, waiting[0]["metadata"]["name"], lambda p: p is not None and is_ready(p)
    )


def test_a_pod_past_the_scheduler_that_asks_for_too_many_gpus_is_refused(
    cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    asks = {"resources": {"limits": {"nvidia.com/gpu": "3"}}}
    cluster.create(pod("past", namespace, *SLEEP, spec={"nodeName": node.name}, **asks))
    found = until(cluster, namespace, "refusal", "past", "Failed")
    assert "asks for 3 of nvidia.com/gpu" in found["status"]["message"]


def test_a_startup_probe_that_never_succeeds_restarts_the_container(cluster: Cluster, namespace: str) -> None:
    probe = {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 2, "terminationGracePeriodSeconds": 1}
    cluster.create(pod("late", namespace, *SLEEP, startupProbe=probe))
    found = cluster.wait_for(
        "restart",
        "Pod",
        namespace,
        "late",
        lambda p: p is not None and container_status(p).get("restartCount") == 1,
        20,
    )
    assert not is_ready(found)
    events = cluster.all("Event", namespace)
    assert any("failed startup probe" in e["message"] for e in events if e["reason"] == "Killing")


def test_a_post_start_hook_that_fails_ends_the_container(cluster: Cluster, namespace: str) -> None:
    hook = {"postStart": {"exec": {"command": ["python", "-c", "print('no'); raise SystemExit(1)"]}}}
    cluster.create(pod("hooked", namespace, *SLEEP, lifecycle=hook, spec=NEVER))
    until(cluster, namespace, "end", "hooked", "Failed")
    cluster.wait(
        "event",
        "Event",
        namespace,
        lambda found: any("FailedPostStartHook: no" in e["message"] for e in found if e["reason"] == "Killing"),
    )


def test_a_deadline_ends_the_pod(cluster: Cluster, namespace: str) -> None:
    cluster.create(pod("long", namespace, *SLEEP, spec={"activeDeadlineSeconds": 1}))
    found = until(cluster, namespace, "end", "long", "Failed")
    assert found["status"]["reason"] == "DeadlineExceeded"


def test_a_job_runs_again_until_it_succeeds(cluster: Cluster, namespace: str) -> None:
    template = pod("job", namespace, "python", "-c", "print('done')", spec=NEVER)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": namespace},
        "spec": {"template": {"spec": template["spec"]}, "completions": 2, "parallelism": 1},
    }
    cluster.create(job)
    cluster.wait_for(
        "completion",
        "Job",
        namespace,
        "job",
        lambda found: found is not None and found["status"].get("succeeded") == 2,
        30,
        "batch/v1",
    )


def test_a_message_that_the_container_wrote_stands_in_its_status(cluster: Cluster, namespace: str) -> None:
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('out of blocks'); sys.exit(4)"
    words = ("python", "-c", program, "/pagefleet/why")
    cluster.create(pod("tells", namespace, *words, terminationMessagePath="/pagefleet/why", spec=NEVER))
    found = until(cluster, namespace, "end", "tells", "Failed")
    assert container_status(found)["state"]["terminated"]["message"] == "out of blocks"


def test_a_failed_init_container_fails_the_pod_and_starts_nothing_else(cluster: Cluster, namespace: str) -> None:
    manifest = pod("main", namespace, *SLEEP, spec=NEVER)
    step = {"name": "step", "image": IMAGE, "command": ["python", "-c", "raise SystemExit(5)"]}
    manifest["spec"]["initContainers"] = [step]
    cluster.create(manifest)
    found = until(cluster, namespace, "end", "main", "Failed")
    assert found["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert state_reason(found) == "PodInitializing"


def test_two_deletions_with_a_shorter_grace_end_it_sooner(cluster: Cluster, namespace: str) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    probe = {"exec": {"command": ["python", "-c", ""]}, "timeoutSeconds": 5, "periodSeconds": 1}
    spec = {"terminationGracePeriodSeconds": 300}
    cluster.create(pod("deaf", namespace, "python", "-c", deaf, readinessProbe=probe, spec=spec))
    cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
    cluster.delete("Pod", namespace, "deaf")
    cluster.wait_for("its end", "Pod", namespace, "deaf", lambda p: bool(p and "deletionTimestamp" in p["metadata"]))
    cluster.delete("Pod", namespace, "deaf", gracePeriodSeconds=1)
    cluster.wait("no pods", "Pod", namespace, lambda found: not found, 30)


def test_a_pod_with_a_finalizer_ends_its_processes_and_waits_for_it(cluster: Cluster, namespace: str) -> None:
    manifest = pod("held", namespace, *SLEEP)
    manifest["metadata"]["finalizers"] = ["pagefleet.test/held"]
    cluster.create(manifest)
    cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
    cluster.delete("Pod", namespace, "held")
    found = cluster.wait_for(
        "its end", "Pod", namespace, "held", lambda p: p is not None and "terminated" in container_status(p)["state"]
    )
    assert found["status"]["phase"] == "Failed" and not is_ready(found)
    cluster.patch("Pod", namespace, "held", {"metadata": {"finalizers": None}})
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)
