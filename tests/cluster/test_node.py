"""The node is a real one: the light image serves under the restricted profile, limits bite, names and claims work."""

import os
from pathlib import Path

import httpx2
import pytest
from kubernetes.client.exceptions import ApiException

from pagefleet_contract.names import ENV_LISTEN_ADDRESS, HTTP_PORT
from tests.cluster.pods import NAME, end_of, has_ended, is_ready, pod, service
from tests.e2e import given_cluster
from tests.e2e.cluster import Cluster, Object
from tests.e2e.traffic import wait_until_reachable

pytestmark = pytest.mark.cluster

LIGHT = os.environ.get(given_cluster.IMAGES["light"], "")
_READY = {"httpGet": {"path": "/health/ready", "port": HTTP_PORT}, "periodSeconds": 1}
_SIMULATED = ("python", "-m", "pagefleet_runtime", "--model-uri", "simulated://smollm2-135m", "--port", str(HTTP_PORT))


def _simulated_engine(namespace: str) -> Object:
    resources = {"limits": {"memory": "256Mi"}}
    made = pod(namespace, LIGHT, *_SIMULATED, readinessProbe=_READY, resources=resources)
    made["spec"]["containers"][0]["env"].append({"name": ENV_LISTEN_ADDRESS, "value": "*"})
    return made


def _run(cluster: Cluster, made: Object) -> Object:
    """Create the pod and return it when it has ended."""
    cluster.create(made)
    return cluster.wait_for("the pod's end", "Pod", made["metadata"]["namespace"], NAME, has_ended)


def test_the_light_image_serves_a_simulated_model_under_the_restricted_profile(
    cluster: Cluster, namespace: str
) -> None:
    cluster.create(service(namespace))
    cluster.create(_simulated_engine(namespace))
    cluster.wait_for("Ready", "Pod", namespace, NAME, is_ready)

    # By the name that status.url has, which the node resolves as pods do.
    url = f"http://{NAME}.{namespace}.svc:{HTTP_PORT}"
    wait_until_reachable(url)
    answer = httpx2.post(
        f"{url}/v1/completions",
        json={"model": "smollm2-135m", "prompt": "Say hello.", "max_tokens": 8},
        timeout=30,
    )

    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_the_profile_refuses_a_pod_that_may_be_root(cluster: Cluster, namespace: str) -> None:
    made = pod(namespace, LIGHT, "true")
    made["spec"]["securityContext"]["runAsNonRoot"] = False

    with pytest.raises(ApiException, match="restricted"):
        cluster.create(made)


def test_a_container_that_takes_more_than_its_memory_is_killed(cluster: Cluster, namespace: str) -> None:
    resources = {"limits": {"memory": "64Mi"}}

    ended = _run(cluster, pod(namespace, LIGHT, "python", "-c", "bytearray(200 << 20)", resources=resources))

    assert end_of(ended)["reason"] == "OOMKilled"


def test_the_root_is_read_only_and_the_user_has_a_number_and_a_name(cluster: Cluster, namespace: str) -> None:
    code = "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_name, os.getuid()); open('/opt/pagefleet/x', 'w')"

    ended = _run(cluster, pod(namespace, LIGHT, "python", "-c", code))

    assert end_of(ended)["exitCode"] == 1
    # A container's two streams reach its log in any order.
    said = cluster.logs(namespace, NAME).splitlines()
    assert "pagefleet 10001" in said
    assert any("Read-only file system" in line for line in said)


def test_a_claim_brings_a_folder_of_the_node_into_a_pod(cluster: Cluster, namespace: str) -> None:
    folder = Path(os.environ[given_cluster.VOLUMES]) / namespace
    folder.mkdir()
    (folder / "weights").write_text("all of them")
    size, modes = {"storage": "1Mi"}, ["ReadOnlyMany"]
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": {"capacity": size, "accessModes": modes, "hostPath": {"path": str(folder)}},
        }
    )
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "model", "namespace": namespace},
            "spec": {
                "volumeName": namespace,
                "storageClassName": "",
                "accessModes": modes,
                "resources": {"requests": size},
            },
        }
    )
    made = pod(namespace, LIGHT, "python", "-c", "print(open('/pagefleet/model/weights').read())")
    made["spec"]["volumes"].append({"name": "model", "persistentVolumeClaim": {"claimName": "model", "readOnly": True}})
    made["spec"]["containers"][0]["volumeMounts"].append({"name": "model", "mountPath": "/pagefleet/model"})

    _run(cluster, made)

    assert cluster.logs(namespace, NAME) == "all of them\n"


def test_a_pod_finds_the_api_server_by_name(cluster: Cluster, namespace: str) -> None:
    code = "import socket; print(socket.gethostbyname('kubernetes.default.svc'))"

    _run(cluster, pod(namespace, LIGHT, "python", "-c", code))

    address = cluster.get("Service", "default", "kubernetes")
    assert address is not None
    assert cluster.logs(namespace, NAME).strip() == address["spec"]["clusterIP"]
