"""The process node with the real scheduler and controllers: how pods run, fail, change and end."""

import ast
from collections.abc import Callable

import pytest

from tests.e2e.cluster import Cluster, Object
from tests.local.node.nodes import (
    IMAGE,
    RunningNode,
    config_map,
    container_status,
    deployment,
    eventually,
    is_ready,
    pod,
    secret,
    state_reason,
    web,
)

pytestmark = pytest.mark.cluster

SLEEP = ("python", "-c", "import time; time.sleep(600)")


def only(found: list[Object], condition: Callable[[Object], bool]) -> bool:
    return len(found) == 1 and condition(found[0])


def until(
    cluster: Cluster, namespace: str, what: str, condition: Callable[[Object], bool], seconds: float = 20
) -> Object:
    return cluster.wait(what, "Pod", namespace, lambda found: only(found, condition), seconds)[0]


def test_a_deployment_comes_up_scales_rolls_and_leaves_nothing(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web", namespace, 2, web()))
    cluster.wait("two ready pods", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True, True])
    addresses = {p["status"]["podIP"] for p in cluster.all("Pod", namespace)}
    assert len(addresses) == 2 and all(a.startswith("127.1.") for a in addresses)

    cluster.apply(deployment("web", namespace, 1, web()))
    cluster.wait("one pod", "Pod", namespace, lambda found: len(found) == 1)

    before = cluster.all("Pod", namespace)[0]["metadata"]["name"]
    cluster.apply(deployment("web", namespace, 1, web(port=8001)))
    cluster.wait(
        "the new pod alone",
        "Pod",
        namespace,
        lambda found: only(found, lambda p: is_ready(p) and p["metadata"]["name"] != before),
    )
    cluster.delete("Deployment", namespace, "web")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)


def test_the_environment_is_what_the_manifest_says_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    cluster.apply(config_map("settings", namespace, COLOUR="green", size="7"))
    cluster.apply(secret("keys", namespace, token="s3cret"))
    env = [
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "size"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "SAYS", "value": "$(WHO) $$(WHO) $(NOBODY)"},
        {"name": "PAGEFLEET_LISTEN_ADDRESS", "value": "*"},
    ]
    program = "import os; print(dict(os.environ)); print(os.getcwd())"
    cluster.create(
        pod(
            "env",
            namespace,
            "python",
            "-c",
            program,
            env=env,
            envFrom=[{"configMapRef": {"name": "settings"}}],
            spec={"restartPolicy": "Never"},
        )
    )
    found = until(cluster, namespace, "end", lambda p: p["status"].get("phase") == "Succeeded")
    text = cluster.logs(namespace, "env").splitlines()
    seen = ast.literal_eval(text[0])
    address = found["status"]["podIP"]
    assert seen["WHO"] == "env" and seen["IP"] == address == seen["PAGEFLEET_LISTEN_ADDRESS"]
    assert (seen["COLOUR"], seen["SIZE"], seen["TOKEN"]) == ("green", "7", "s3cret")
    assert seen["SAYS"] == "env $(WHO) $(NOBODY)"
    assert "GONE" not in seen and "VIRTUAL_ENV" not in seen
    assert seen["HOME"] == text[1] != seen["TMPDIR"]
    assert state_reason(found) == "Completed"


def test_a_crash_loop_looks_as_on_every_node(cluster: Cluster, namespace: str) -> None:
    program = "import sys; print('no such model'); sys.exit(3)"
    cluster.create(pod("crash", namespace, "python", "-c", program, terminationMessagePolicy="FallbackToLogsOnError"))
    found = until(
        cluster,
        namespace,
        "crash loop",
        lambda p: state_reason(p) == "CrashLoopBackOff" and container_status(p)["restartCount"] == 1,
    )
    status = container_status(found)
    assert "back-off 10s restarting failed container=crash pod=crash_" in status["state"]["waiting"]["message"]
    ended = status["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "no such model\n")
    assert found["status"]["phase"] == "Running" and not is_ready(found)


def test_a_failing_liveness_probe_restarts_the_container(cluster: Cluster, namespace: str) -> None:
    probe = {"exec": {"command": ["python", "-c", "raise SystemExit(1)"]}, "periodSeconds": 1, "failureThreshold": 2}
    cluster.create(pod("sick", namespace, *SLEEP, livenessProbe=probe | {"timeoutSeconds": 5}))
    found = until(cluster, namespace, "restart", lambda p: container_status(p).get("restartCount", 0) >= 1)
    assert container_status(found)["lastState"]["terminated"]["exitCode"] == 143
    events = cluster.wait(
        "killing event", "Event", namespace, lambda found: any(e["reason"] == "Killing" for e in found)
    )
    assert any(e["reason"] == "Unhealthy" and "Liveness probe failed" in e["message"] for e in events)


def test_readiness_follows_its_probe(cluster: Cluster, namespace: str) -> None:
    cluster.apply(config_map("switch", namespace, ready="yes"))
    program = "import sys, pathlib; sys.exit(pathlib.Path('/pagefleet/config/ready').read_text() != 'yes')"
    probe = {
        "exec": {"command": ["python", "-c", program]},
        "periodSeconds": 1,
        "failureThreshold": 1,
        "timeoutSeconds": 5,
    }
    volumes = [{"name": "config", "configMap": {"name": "switch"}}]
    mounts = [{"name": "config", "mountPath": "/pagefleet/config"}]
    cluster.create(
        pod("switch", namespace, *SLEEP, readinessProbe=probe, volumeMounts=mounts, spec={"volumes": volumes})
    )
    until(cluster, namespace, "ready", is_ready)
    cluster.apply(config_map("switch", namespace, ready="no"))
    until(cluster, namespace, "unready", lambda p: not is_ready(p))
    cluster.apply(config_map("switch", namespace, ready="yes"))
    until(cluster, namespace, "ready again", is_ready)


def test_a_mounted_configuration_follows_its_config_map(cluster: Cluster, namespace: str) -> None:
    cluster.apply(config_map("live", namespace, a="1", b="x"))
    program = (
        "import time, pathlib, sys\n"
        "folder, seen = pathlib.Path(sys.argv[1]), None\n"
        "while True:\n"
        "    now = sorted((p.name, p.read_text()) for p in folder.iterdir() if not p.name.startswith('..'))\n"
        "    if now != seen: print(now, flush=True); seen = now\n"
        "    time.sleep(0.02)\n"
    )
    volumes = [{"name": "live", "configMap": {"name": "live"}}]
    mounts = [{"name": "live", "mountPath": "/pagefleet/live"}]
    cluster.create(
        pod(
            "live",
            namespace,
            "python",
            "-c",
            program,
            "/pagefleet/live",
            volumeMounts=mounts,
            spec={"volumes": volumes},
        )
    )
    until(cluster, namespace, "ready", is_ready)
    eventually("first contents", lambda: "[('a', '1'), ('b', 'x')]" in cluster.logs(namespace, "live"))
    cluster.patch("ConfigMap", namespace, "live", {"data": {"a": "2", "b": None, "c": "y"}}, "v1")
    eventually("new contents", lambda: "[('a', '2'), ('c', 'y')]" in cluster.logs(namespace, "live"))


def test_a_missing_secret_is_waited_for_with_an_event(cluster: Cluster, namespace: str) -> None:
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    mounts = [{"name": "keys", "mountPath": "/pagefleet/keys"}]
    cluster.create(pod("waits", namespace, *SLEEP, volumeMounts=mounts, spec={"volumes": volumes}))
    events = cluster.wait(
        "mount event", "Event", namespace, lambda found: any(e["reason"] == "FailedMount" for e in found)
    )
    assert any('MountVolume.SetUp failed for volume "keys" : secret "keys" not found' in e["message"] for e in events)
    found = cluster.get("Pod", namespace, "waits")
    assert found and state_reason(found) == "ContainerCreating" and found["status"]["phase"] == "Pending"
    cluster.apply(secret("keys", namespace, tenant="key"))
    until(cluster, namespace, "ready", is_ready, 20)


def test_a_missing_key_in_the_environment_is_a_config_error_until_it_is_there(cluster: Cluster, namespace: str) -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "key"}}}]
    cluster.create(pod("late", namespace, *SLEEP, env=env))
    found = until(cluster, namespace, "config error", lambda p: state_reason(p) == "CreateContainerConfigError")
    message = container_status(found)["state"]["waiting"]["message"]
    assert message == f'secret "late" not found in namespace {namespace}'
    cluster.apply(secret("late", namespace, key="x"))
    until(cluster, namespace, "ready", is_ready, 20)


def test_an_unknown_image_ends_in_a_pull_error(cluster: Cluster, namespace: str, node: RunningNode) -> None:
    cluster.create(pod("other", namespace, *SLEEP, image="registry.invalid/x:1"))
    found = until(cluster, namespace, "pull error", lambda p: state_reason(p) == "ImagePullBackOff")
    message = container_status(found)["state"]["waiting"]["message"]
    assert "registry.invalid/x:1" in message and IMAGE in message
    cluster.delete("Pod", namespace, "other")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found, 20)


def test_a_command_that_is_not_there_is_a_start_error(cluster: Cluster, namespace: str) -> None:
    cluster.create(pod("typo", namespace, "pythonn", spec={"restartPolicy": "Never"}))
    found = until(cluster, namespace, "failure", lambda p: p["status"].get("phase") == "Failed")
    ended = container_status(found)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError") and "pythonn" in ended["message"]


def test_a_pod_that_asks_for_the_machine_waits_with_every_reason(cluster: Cluster, namespace: str) -> None:
    cluster.create(
        pod(
            "greedy",
            namespace,
            *SLEEP,
            securityContext={"privileged": True},
            volumeMounts=[{"name": "root", "mountPath": "/host"}],
            spec={"hostNetwork": True, "volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
        )
    )
    found = until(cluster, namespace, "refusal", lambda p: state_reason(p) == "NotRunnableOnProcessNode")
    assert found["status"]["phase"] == "Pending"  # a failed one would be replaced, without end
    for part in ("hostNetwork", "privileged", "hostPath", "mountPath /host"):
        assert part in container_status(found)["state"]["waiting"]["message"]
    cluster.delete("Pod", namespace, "greedy")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found, 20)


def test_memory_over_the_limit_ends_the_container_as_oom_killed(cluster: Cluster, namespace: str) -> None:
    program = "import time; held = bytearray(80 << 20); time.sleep(600)"
    cluster.create(
        pod(
            "big",
            namespace,
            "python",
            "-c",
            program,
            resources={"limits": {"memory": "40Mi"}},
            spec={"restartPolicy": "Never"},
        )
    )
    found = until(cluster, namespace, "failure", lambda p: p["status"].get("phase") == "Failed")
    ended = container_status(found)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_init_containers_run_in_turn_and_sidecars_stay_beside(cluster: Cluster, namespace: str) -> None:
    write = (
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + '1' if p.exists() else '0')"
    )
    mounts = [{"name": "tmp", "mountPath": "/pagefleet/tmp"}]
    step = {"image": IMAGE, "command": ["python", "-c", write, "/pagefleet/tmp/steps"], "volumeMounts": mounts}
    probe = {"exec": {"command": ["python", "-c", ""]}, "timeoutSeconds": 5, "periodSeconds": 1}
    sidecar = {"image": IMAGE, "command": list(SLEEP), "restartPolicy": "Always", "startupProbe": probe}
    show = "import pathlib; print(pathlib.Path('/pagefleet/tmp/steps').read_text())"
    manifest = pod("main", namespace, "python", "-c", show, volumeMounts=mounts)
    manifest["spec"] |= {
        "restartPolicy": "Never",
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "initContainers": [{"name": "one", **step}, {"name": "beside", **sidecar}, {"name": "two", **step}],
    }
    cluster.create(manifest)
    found = until(cluster, namespace, "end", lambda p: p["status"].get("phase") == "Succeeded")
    assert cluster.logs(namespace, "main", container="main") == "01\n"
    states = {s["name"]: s["state"] for s in found["status"]["initContainerStatuses"]}
    assert all("terminated" in states[name] for name in ("one", "two"))
    until(cluster, namespace, "end of the sidecar", lambda p: "terminated" in _init_state(p, "beside"))


def _init_state(found: Object, name: str) -> Object:
    return dict(next(s["state"] for s in found["status"]["initContainerStatuses"] if s["name"] == name))


def test_a_claim_leads_to_its_folder_and_the_folder_outlives_the_pod(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "weights").write_text("w")
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"v-{namespace}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "manual",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": "model"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "model", "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "manual",
            "volumeName": f"v-{namespace}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    cluster.create(volume)
    cluster.create(claim)
    show = "import sys, pathlib; print(sys.argv[1]); print(pathlib.Path(sys.argv[1][7:]).read_text())"
    mounts = [{"name": "model", "mountPath": "/pagefleet/model"}]
    volumes = [{"name": "model", "persistentVolumeClaim": {"claimName": "model"}}]
    cluster.create(
        pod(
            "reads",
            namespace,
            "python",
            "-c",
            show,
            "file:///pagefleet/model/weights",
            volumeMounts=mounts,
            spec={"volumes": volumes, "restartPolicy": "Never"},
        )
    )
    until(cluster, namespace, "end", lambda p: p["status"].get("phase") == "Succeeded")
    assert cluster.logs(namespace, "reads").splitlines()[1] == "w"
    cluster.delete("Pod", namespace, "reads")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found)
    assert (folder / "weights").read_text() == "w"
    cluster.delete("PersistentVolumeClaim", namespace, "model")
    cluster.delete("PersistentVolume", None, f"v-{namespace}")


def test_a_pre_stop_hook_runs_before_sigterm_and_the_grace_ends_what_ignores_it(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = tmp_path_factory.mktemp("trace") / "trace"
    program = (
        "import signal, time, pathlib\n"
        f"p = pathlib.Path({str(trace)!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: p.write_text(p.read_text() + ' term'))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    hook = f"import pathlib; pathlib.Path({str(trace)!r}).write_text('hook')"
    lifecycle = {"preStop": {"exec": {"command": ["python", "-c", hook]}}}
    cluster.create(pod("deaf", namespace, "python", "-c", program, lifecycle=lifecycle))
    eventually("up", lambda: _log_or_nothing(cluster, namespace, "deaf") == "up\n")
    cluster.delete("Pod", namespace, "deaf")
    cluster.wait("no pods", "Pod", namespace, lambda found: not found, 8)
    assert trace.read_text() == "hook term"


def _log_or_nothing(cluster: Cluster, namespace: str, name: str) -> str:
    try:
        return cluster.logs(namespace, name)
    except Exception:
        return ""


def test_a_namespace_is_deleted_without_a_wait_of_the_node_s(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web", namespace, 2, web()))
    cluster.wait("two ready pods", "Pod", namespace, lambda found: [is_ready(p) for p in found] == [True, True])
    cluster.delete("Namespace", None, namespace)
    # The controller lets five seconds pass before it begins, and looks again after half of the pods' grace.
    cluster.wait("no pods", "Pod", namespace, lambda found: not found, 10)
    cluster.wait(
        "no namespace", "Namespace", None, lambda found: all(n["metadata"]["name"] != namespace for n in found), 20
    )


def test_a_pod_acts_in_the_api_as_its_own_service_account(cluster: Cluster, namespace: str) -> None:
    program = (
        "import os, kubernetes\n"
        "kubernetes.config.load_kube_config(os.environ['KUBECONFIG'])\n"
        "who = kubernetes.client.AuthenticationV1Api().create_self_subject_review({})\n"
        "print(who.status.user_info.username)\n"
    )
    cluster.create(pod("acts", namespace, "python", "-c", program, spec={"restartPolicy": "Never"}))
    until(cluster, namespace, "end", lambda p: p["status"].get("phase") in ("Succeeded", "Failed"))
    assert cluster.logs(namespace, "acts") == f"system:serviceaccount:{namespace}:default\n"
