"""The process node killed, ended and started again: its pods go on, and what happened meanwhile is made good."""

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pagefleet_local.control_plane import ControlPlane
from pagefleet_local.waiting import wait_for
from tests.e2e.cluster import Cluster, Object
from tests.local.node.nodes import RunningNode, container_status, deployment, eventually, is_ready, pod, ready, web

pytestmark = pytest.mark.cluster

SLEEP = ("python", "-c", "import time; time.sleep(600)")


def test_a_killed_node_adopts_its_processes_and_no_request_is_lost(
    cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    cluster.apply(deployment("web", namespace, 1, web()))
    found = cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])[0]
    started = container_status(found)["state"]["running"]["startedAt"]
    url, answered, going = f"http://{found['status']['podIP']}:8000/", [0], threading.Event()

    def load() -> None:
        while answered[0] < 40 or not going.is_set():
            urllib.request.urlopen(url, timeout=10).close()
            answered[0] += 1
            time.sleep(0.01)

    thread = threading.Thread(target=load)
    thread.start()
    node.kill()
    node.start()
    # The next life of the node is the one that takes the pod down.
    eventually("adoption", lambda: node.log.count("registered node") >= 1)
    going.set()
    thread.join()
    assert answered[0] >= 40
    cluster.apply(deployment("web", namespace, 1, web(), spec={"terminationGracePeriodSeconds": 5}))
    now = cluster.all("Pod", namespace)[0]
    assert is_ready(now) and container_status(now)["restartCount"] == 0
    assert container_status(now)["state"]["running"]["startedAt"] == started
    cluster.delete("Deployment", namespace, "web")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)


def test_an_adopted_process_still_tells_how_it_ended(
    cluster: Cluster, namespace: str, node: RunningNode, tmp_path: Path
) -> None:
    program = "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\nsys.exit(7)"
    go = tmp_path / "go"
    cluster.create(pod("ends", namespace, "python", "-c", program, str(go), spec={"restartPolicy": "Never"}))
    cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
    node.end()
    node.start()
    probe = pod("probe", namespace, *SLEEP)
    cluster.create(probe)
    cluster.wait("the node's next pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True, True])
    go.touch()
    found = cluster.wait(
        "failure", "Pod", namespace, lambda found: any(p["status"].get("phase") == "Failed" for p in found)
    )
    ended = next(container_status(p)["state"]["terminated"] for p in found if p["metadata"]["name"] == "ends")
    assert ended["exitCode"] == 7 and ended["reason"] == "Error"


def test_what_happened_while_the_node_was_away_is_made_good(
    cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    for name in ("stays", "dies", "goes"):
        cluster.create(pod(name, namespace, *SLEEP))
    found = cluster.wait("pods", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True] * 3)
    addresses = {p["metadata"]["name"]: p["status"]["podIP"] for p in found}
    processes = {name: _process(node, name) for name in addresses}
    node.kill()
    _kill(processes["dies"])
    cluster.delete("Pod", namespace, "goes", gracePeriodSeconds=0)
    cluster.create(pod("new", namespace, *SLEEP))
    node.start()
    found = cluster.wait(
        "all made good",
        "Pod",
        namespace,
        lambda found: (
            sorted(p["metadata"]["name"] for p in found) == ["dies", "new", "stays"]
            and all(is_ready(p) for p in found)
            and any(container_status(p)["restartCount"] == 1 for p in found)
        ),
    )
    by_name = {p["metadata"]["name"]: p for p in found}
    assert by_name["stays"]["status"]["podIP"] == addresses["stays"]
    assert container_status(by_name["stays"])["restartCount"] == 0
    last = container_status(by_name["dies"])["lastState"]["terminated"]
    assert last["reason"] == "ContainerStatusUnknown"
    eventually("end of the deleted pod's process", lambda: not Path(f"/proc/{processes['goes']}/cwd").exists())


def _process(node: RunningNode, pod_name: str) -> int:
    """Return the process that the node has for a pod, from the record that it keeps."""
    records = [json.loads(path.read_text()) for path in node.state.glob("pods/*/record.json")]
    record: Object = next(r for r in records if r["name"] == pod_name)
    return int(record["containers"][pod_name]["state"]["running"]["pid"])


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not Path(f"/proc/{pid}/cwd").exists(), 30)


def test_stopped_pods_start_again_with_the_next_node_without_a_back_off(
    cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    cluster.create(pod("back", namespace, *SLEEP))
    for times in (1, 2):
        cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
        process = _process(node, "back")
        node.end()
        assert Path(f"/proc/{process}/cwd").exists(), "SIGTERM to the node must leave the pods alone"
        node.stop_pods()
        assert not Path(f"/proc/{process}/cwd").exists()
        node.start()
        found = cluster.wait("next run", "Pod", namespace, _runs_again(times), 8)
        assert container_status(found[0])["lastState"]["terminated"]["reason"] == "NodeStopped"


def _runs_again(times: int) -> Callable[[list[Object]], bool]:
    def condition(found: list[Object]) -> bool:
        return bool(found) and is_ready(found[0]) and container_status(found[0]).get("restartCount") == times

    return condition


def test_the_node_follows_again_when_the_api_server_was_away(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, node: RunningNode
) -> None:
    cluster.create(pod("before", namespace, *SLEEP))
    cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
    control_plane.processes.stop("kube-apiserver", 15)
    control_plane.start()
    cluster.create(pod("after", namespace, *SLEEP))
    cluster.wait("both pods", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True, True], 60)
    assert all(container_status(p)["restartCount"] == 0 for p in cluster.all("Pod", namespace))
    ready(cluster, node.name)
