"""The children's manifests: valid for the API server, restricted, and complete."""

import json
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.flags import parse_serve
from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.router import RouterConfig
from pagefleet_operator.observed import Manifest, OptionalApis
from tests.operator.builders import REAL, SIMULATED, applied, engine, observed, planned, settings, spec
from tests.operator.pod_security import violations

EVERYTHING: dict[str, Any] = {
    "replicas": 3,
    "image": "mine:1",
    "model": {"uri": "pvc://models/llama/8b", "cacheClaim": "cache", "servedName": "llama", "maxLength": 4096},
    "accelerator": {"resource": "nvidia.com/mig-1g.10gb", "memory": "80Gi"},
    "tenancy": {"apiKeysSecret": "keys"},
    "serving": {"startTimeoutSeconds": 61},
    "rollout": {"maxSurge": 2, "maxUnavailable": 1, "drainTimeoutSeconds": 30},
    "podTemplate": {
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "nodeSelector": {"pool": "ml"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "runtimeClassName": "gpu",
        "priorityClassName": "low",
        "schedulerName": "mine",
        "imagePullSecrets": ["mine", "shared"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "16Gi"}},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    },
}
ALL = settings(networkPolicies="Enabled", podMonitors="Enabled", images={"pullSecrets": ["shared", "ours"]})


def children(wanted: InferenceServiceSpec) -> dict[tuple[str, str], Manifest]:
    return applied(planned(observed(wanted, apis=OptionalApis(pod_monitors=True)), ALL))


def container(wanted: InferenceServiceSpec) -> dict[str, Any]:
    found: dict[str, Any] = pod(wanted)["containers"][0]
    return found


def pod(wanted: InferenceServiceSpec) -> dict[str, Any]:
    found: dict[str, Any] = engine(children(wanted))["spec"]["template"]["spec"]
    return found


SPECS = [spec(SIMULATED), spec(REAL), spec(EVERYTHING), spec(SIMULATED, routing={"mode": "Service"}, replicas=0)]


@pytest.mark.parametrize("wanted", SPECS, ids=["simulated", "real", "everything", "without-router"])
def test_every_child_is_valid_and_every_pod_restricted(wanted: InferenceServiceSpec) -> None:
    for (kind, _), manifest in children(wanted).items():
        if kind != "PodMonitor":  # no kind of Kubernetes' own
            kubernetes_validate.validate(
                json.loads(json.dumps(manifest)), kubernetes_validate.latest_version(), strict=True
            )
        if kind == "Deployment":
            assert violations(manifest["spec"]["template"]["spec"]) == []
            assert manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("wanted", SPECS, ids=["simulated", "real", "everything", "without-router"])
def test_every_child_has_its_owner_and_labels_and_selectors_hold_two(wanted: InferenceServiceSpec) -> None:
    for manifest in children(wanted).values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceService", "chat", True)
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "pagefleet"
        assert labels["pagefleet.dev/service"] == "chat"
        selector = manifest.get("spec", {}).get("selector")
        if selector and manifest["kind"] != "PodMonitor":
            assert set(selector.get("matchLabels", selector)) == {"pagefleet.dev/service", "pagefleet.dev/component"}


def test_what_replicas_start_with_is_what_the_spec_asks_for() -> None:
    found = children(spec(EVERYTHING, scheduling={"maxSequences": 12, "policy": "Priority"}))
    (settings_,) = [child for child in found.values() if child.get("immutable")]
    config = EngineConfig.model_validate_json(settings_["data"]["engine.json"])
    assert (config.model.served_name, config.model.max_length) == ("llama", 4096)
    assert config.scheduling.policy == "Priority"
    assert config.scheduling.max_sequences != 12, "what can change live isn't in what can't change"
    assert json.loads(found["ConfigMap", "chat-live"]["data"]["live.json"])["maxSequences"] == 12


def test_settings_are_written_without_their_defaults_so_that_new_ones_roll_nothing() -> None:
    found = children(spec(SIMULATED))
    (settings_,) = [child for child in found.values() if child.get("immutable")]
    assert set(json.loads(settings_["data"]["engine.json"])) == {"model", "kvCache", "scheduling"}
    assert json.loads(found["ConfigMap", "chat-router"]["data"]["router.json"]).keys() == {
        "namespace",
        "servedName",
        "serviceName",
    }


def test_the_engine_takes_its_own_command_line() -> None:
    arguments = container(spec(EVERYTHING))["args"]
    files = {"--config", "--live", "--serving-operator-key-file", "--serving-api-keys-file", "--model-uri"}
    assert set(arguments[::2]) == files
    without_files = [
        word
        for pair in zip(arguments[::2], arguments[1::2], strict=True)
        if pair[0] not in ("--config", "--live")
        for word in pair
    ]
    config = parse_serve(without_files, "serve").config
    assert config.model.uri == "file:///pagefleet/model/llama/8b"
    assert config.serving.api_keys_file == "/pagefleet/keys"


def test_the_router_reads_its_settings() -> None:
    found = children(spec(EVERYTHING))["ConfigMap", "chat-router"]
    config = RouterConfig.model_validate_json(found["data"]["router.json"])
    assert (config.service_name, config.namespace, config.served_name) == ("chat", "prod", "llama")
    assert config.drain_timeout_seconds == 30


def test_mount_paths_lie_under_one_root_and_each_is_mounted_once() -> None:
    found = pod(spec(EVERYTHING))
    mounts = {entry["mountPath"]: entry["name"] for entry in found["containers"][0]["volumeMounts"]}
    assert {path for path in mounts if not path.startswith("/pagefleet/")} == {"/data"}
    assert len(mounts) == len(found["containers"][0]["volumeMounts"]) == 7
    assert set(mounts.values()) == {volume["name"] for volume in found["volumes"]}


def test_several_gpus_are_ranks_with_shared_memory_and_cores_are_not() -> None:
    wanted = spec(REAL, accelerator={"count": 4, "memory": "80Gi"})
    (config,) = [child for child in children(wanted).values() if child.get("immutable")]
    assert json.loads(config["data"]["engine.json"])["parallel"] == {"tensor": 4}
    assert container(wanted)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    (volume,) = [volume for volume in pod(wanted)["volumes"] if volume["name"] == "shared-memory"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container(wanted)["volumeMounts"]

    for other in (spec(REAL, accelerator={"resource": "cpu", "count": 4}), spec(SIMULATED, accelerator={"count": 4})):
        (config,) = [child for child in children(other).values() if child.get("immutable")]
        assert "parallel" not in json.loads(config["data"]["engine.json"])
        assert "shared-memory" not in json.dumps(pod(other))


def test_probes_grace_and_tokens() -> None:
    found = pod(spec(EVERYTHING))
    assert found["terminationGracePeriodSeconds"] == 40
    assert found["automountServiceAccountToken"] is False
    probe = found["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 61
    assert probe["httpGet"]["path"] == "/health/ready"
    assert "startupProbe" not in container(spec(REAL))
    assert container(spec(REAL))["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_credentials_are_the_environment_and_never_in_settings() -> None:
    found = children(spec(REAL, model={"uri": "hf://acme/llama", "credentialsSecret": "hub"}))
    assert engine(found)["spec"]["template"]["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert all("hub" not in str(child.get("data")) for child in found.values())


def test_simulated_engines_run_in_the_light_image_and_share_cores() -> None:
    assert container(spec(SIMULATED))["image"] == "pagefleet:0.1.0"
    assert container(spec(REAL))["image"] == "pagefleet-runtime:0.1.0"
    assert container(spec(SIMULATED))["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}}


def test_the_hashes_do_not_depend_on_what_the_operator_brings() -> None:
    one = engine(applied(planned(observed(spec(REAL)), settings())))
    other = engine(applied(planned(observed(spec(REAL)), settings(images={"engine": "x:2", "pullPolicy": "Always"}))))
    assert (
        one["metadata"]["annotations"]["pagefleet.dev/spec-hash"]
        == other["metadata"]["annotations"]["pagefleet.dev/spec-hash"]
    )
    hashes = {
        found["spec"]["template"]["metadata"]["annotations"]["pagefleet.dev/template-hash"] for found in (one, other)
    }
    assert len(hashes) == 2


@given(st.sampled_from(SPECS), st.integers(0, 1000), st.sampled_from(["External", "HPA"]))
def test_replicas_and_autoscaling_never_reach_the_template(
    base: InferenceServiceSpec, replicas: int, class_: str
) -> None:
    document = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
    scaling = {"class": class_, "minReplicas": 1, "maxReplicas": 9}
    changed = spec(document, replicas=replicas, autoscaling=scaling)
    assert engine(children(changed))["spec"]["template"] == engine(children(base))["spec"]["template"]
