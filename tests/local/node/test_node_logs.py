"""`kubectl logs` through the API server from the process node, with every option that it has."""

import datetime
import http.client
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagefleet_local.control_plane import ControlPlane
from pagefleet_local.tools import KUBECTL, find_tools
from tests.e2e.cluster import Cluster
from tests.local.node.nodes import RunningNode, container_status, eventually, is_ready, pod, state_reason

pytestmark = pytest.mark.cluster


class Kubectl:
    def __init__(self, plane: ControlPlane, namespace: str, cache: Path) -> None:
        program = find_tools(cache, print)[KUBECTL]
        self.command = [str(program), f"--kubeconfig={plane.kubeconfig}", f"--namespace={namespace}"]

    def logs(self, *arguments: str) -> str:
        done = subprocess.run([*self.command, "logs", *arguments], capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture
def kubectl(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Kubectl:
    return Kubectl(control_plane, namespace, tmp_path)


COUNTS = "for i in range(5): print('line', i, flush=True)\nimport time; time.sleep(600)"


def test_logs_are_cut_and_stamped_as_asked(cluster: Cluster, namespace: str, kubectl: Kubectl) -> None:
    cluster.create(pod("counts", namespace, "python", "-c", COUNTS))
    eventually("all lines", lambda: "line 4" in kubectl.logs("counts"))
    assert kubectl.logs("counts") == "".join(f"line {i}\n" for i in range(5))
    assert kubectl.logs("counts", "--tail=2") == "line 3\nline 4\n"
    assert kubectl.logs("counts", "--tail=0") == ""
    assert kubectl.logs("counts", "--limit-bytes=9") == "line 0\nli"
    stamp, _, line = kubectl.logs("counts", "--timestamps", "--tail=1").partition(" ")
    age = time.time() - datetime.datetime.fromisoformat(stamp).timestamp()
    assert line == "line 4\n" and -1 < age < 30
    assert kubectl.logs("counts", "--since=1h", "--tail=1") == "line 4\n"
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    assert kubectl.logs("counts", f"--since-time={later:%Y-%m-%dT%H:%M:%SZ}") == ""


def test_followed_logs_end_with_the_container(cluster: Cluster, namespace: str, kubectl: Kubectl) -> None:
    program = "import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('done', flush=True)"
    cluster.create(pod("follows", namespace, "python", "-c", program, spec={"restartPolicy": "Never"}))
    eventually("first line", lambda: "begun" in kubectl.logs("follows"))
    assert kubectl.logs("follows", "--follow") == "begun\ndone\n"


def test_the_log_of_the_run_before_is_kept(cluster: Cluster, namespace: str, kubectl: Kubectl) -> None:
    program = (
        "import sys, time, pathlib\n"
        "mark = pathlib.Path(sys.argv[1]) / 'mark'\n"
        "if mark.exists(): print('second', flush=True); time.sleep(600)\n"
        "mark.touch(); print('first', flush=True); sys.exit(1)\n"
    )
    mounts, volumes = [{"name": "v", "mountPath": "/pagefleet/v"}], [{"name": "v", "emptyDir": {}}]
    words = ("python", "-c", program, "/pagefleet/v")
    cluster.create(pod("twice", namespace, *words, volumeMounts=mounts, spec={"volumes": volumes}))
    cluster.wait(
        "second run",
        "Pod",
        namespace,
        lambda found: bool(found) and container_status(found[0]).get("restartCount") == 1,
    )
    eventually("second line", lambda: kubectl.logs("twice") == "second\n")
    assert kubectl.logs("twice", "--previous") == "first\n"


def test_a_log_that_is_not_there_yet_says_what_is_waited_for(
    cluster: Cluster, namespace: str, kubectl: Kubectl
) -> None:
    cluster.create(pod("other", namespace, "python", image="registry.invalid/x:1"))
    cluster.wait(
        "pull error",
        "Pod",
        namespace,
        lambda found: bool(found) and state_reason(found[0]) == "ImagePullBackOff",
    )
    assert 'container "other" in pod "other" is waiting to start' in kubectl.logs("other")
    assert "previous terminated container" in kubectl.logs("other", "--previous")


def test_other_ways_into_a_pod_are_refused_in_words(cluster: Cluster, namespace: str, kubectl: Kubectl) -> None:
    cluster.create(pod("closed", namespace, "python", "-c", COUNTS))
    cluster.wait("a pod", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True])
    done = subprocess.run(
        [*kubectl.command, "exec", "closed", "--", "true"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "no exec, attach or port-forward" in done.stderr


def test_only_the_api_server_gets_logs(control_plane: ControlPlane, node: RunningNode, cluster: Cluster) -> None:
    found = cluster.get("Node", None, node.name)
    assert found
    port = found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context(cafile=str(control_plane.authority))
    unknown = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        unknown.request("GET", "/healthz")
        unknown.getresponse()
    unknown.close()
    context.load_cert_chain(control_plane.keys / "admin.crt", control_plane.keys / "admin.key")
    other = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    other.request("GET", "/containerLogs/default/x/x")
    assert other.getresponse().status == 403
    other.close()


def test_the_python_of_pods_is_this_one(cluster: Cluster, namespace: str, kubectl: Kubectl) -> None:
    cluster.create(
        pod("which", namespace, "python", "-c", "import sys; print(sys.prefix)", spec={"restartPolicy": "Never"})
    )
    eventually("its answer", lambda: kubectl.logs("which") == f"{sys.prefix}\n")
