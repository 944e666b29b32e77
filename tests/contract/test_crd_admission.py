"""The definition on a real API server: admitted without a warning; its defaults, bounds and rules do what they say."""

import copy
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from pagefleet_contract import names
from pagefleet_contract.crd import resource_schema
from pagefleet_contract.installed_schema import OPENAPI_PATH, missing_fields
from pagefleet_local.control_plane import ControlPlane
from pagefleet_local.folders import cache_folder
from pagefleet_local.tools import find_tools
from tests.contract.rule_cases import RULES
from tests.contract.samples import samples
from tests.contract.schemas import Schema, fields

pytestmark = pytest.mark.cluster

CRD = Path(__file__).resolve().parents[2] / "crds/inferenceservices.yaml"
Kubectl = Callable[..., str]
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    program = find_tools(cache_folder(os.environ), print)["kubectl"]

    def run(*arguments: str, given: str | None = None, fails: bool = False) -> str:
        """Return what kubectl printed, both streams. `fails` says that it has to end with an error."""
        done = subprocess.run(
            [program, *arguments],
            input=given,
            env={"KUBECONFIG": str(control_plane.kubeconfig), "HOME": str(control_plane.kubeconfig.parent)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module", autouse=True)
def applied(kubectl: Kubectl) -> Iterator[str]:
    """The definition, by plain client-side apply; what kubectl said."""
    kubectl("delete", "crd", names.CRD_NAME, "--ignore-not-found")  # whoever shares the control plane may have left it
    said = kubectl("apply", "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", f"crd/{names.CRD_NAME}")
    yield said
    kubectl("delete", "crd", names.CRD_NAME)


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(config.new_client_from_config(str(control_plane.kubeconfig)))


def service(**spec: Any) -> Manifest:
    model = {"uri": "simulated://llama-3.1-8b"}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": model, **spec},
    }


def named(name: str) -> Manifest:
    manifest = service()
    manifest["metadata"]["name"] = name
    return manifest


def admitted(api: client.CustomObjectsApi, manifest: Manifest) -> Manifest:
    """Return the object as the API server would store it, by a strict server-side dry run."""
    found: Any = api.create_namespaced_custom_object(
        names.GROUP, names.VERSION, "default", names.PLURAL, manifest, dry_run="All", field_validation="Strict"
    )
    return dict(found)


def refusal(api: client.CustomObjectsApi, manifest: Manifest) -> str:
    with pytest.raises(ApiException) as caught:
        admitted(api, manifest)
    assert caught.value.status in (400, 422), caught.value.body
    return str(json.loads(caught.value.body or "{}")["message"])


def merged(base: Manifest, patch: Manifest) -> Manifest:
    found = copy.deepcopy(base)
    for name, value in patch.items():
        known = found.get(name)
        found[name] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return found


# DESIGN's spec that uses most of it.
FULL: Manifest = {
    "replicas": 1,
    "model": {
        "uri": "hf://meta-llama/Llama-3.1-70B-Instruct",
        "servedName": "llama-70b",
        "maxLength": 8192,
        "dtype": "bfloat16",
    },
    "accelerator": {"resource": "nvidia.com/gpu", "count": 4, "memory": "80Gi"},
    "kvCache": {
        "blockSize": 16,
        "budget": {"memoryPercent": 90},
        "dtype": "auto",
        "prefixSharing": {"mode": "Tenant", "retention": {"policy": "LRU", "ttlSeconds": 3600}},
        "swap": {"mode": "Auto", "hostMemory": "64Gi", "highWatermarkPercent": 95, "lowWatermarkPercent": 85},
    },
    "scheduling": {
        "maxSequences": 256,
        "stepMilliseconds": 50,
        "maxQueue": 512,
        "queueTimeoutSeconds": 60,
        "policy": "FCFS",
    },
    "autoscaling": {
        "class": "Builtin",
        "minReplicas": 1,
        "maxReplicas": 8,
        "targetKVPercent": 80,
        "scaleUp": {"stabilizationSeconds": 0, "maxPercent": 100},
        "scaleDown": {"stabilizationSeconds": 300, "maxReplicas": 1},
        "scaleToZero": {"mode": "Disabled"},
        "warmReplicas": 0,
    },
    "routing": {"mode": "PrefixAware", "loadCapPercent": 125},
    "tenancy": {"apiKeysSecret": "keys", "kvQuotaPercent": {"default": 50}},
    "rollout": {"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 600},
    "podTemplate": {},
}


def test_the_definition_is_admitted_without_a_warning_by_plain_apply(applied: str) -> None:
    assert applied.splitlines() == [f"customresourcedefinition.apiextensions.k8s.io/{names.CRD_NAME} created"]


def test_nothing_of_the_definition_is_in_conflict_or_not_structural(kubectl: Kubectl) -> None:
    conditions = json.loads(kubectl("get", "crd", names.CRD_NAME, "-o", "json"))["status"]["conditions"]
    assert {(each["type"], each["status"]) for each in conditions} == {
        ("NamesAccepted", "True"),
        ("Established", "True"),
    }


@pytest.mark.parametrize("case", RULES, ids=lambda case: str(case[0]).replace(" ", "-"))
def test_a_rule_refuses_with_its_message_and_only_what_it_must(
    api: client.CustomObjectsApi, case: tuple[str, Manifest, Manifest]
) -> None:
    message, wrong, right = case
    smallest = service()
    assert message in refusal(api, merged(smallest, {"spec": wrong}))
    admitted(api, merged(smallest, {"spec": right}))


def test_every_rule_of_the_schema_has_a_case() -> None:
    def messages(schema: Schema) -> Iterator[str]:
        for _, field in fields(schema):
            yield from (rule["message"] for rule in field.get("x-kubernetes-validations", []))

    tried = [message for message, _, _ in RULES]
    assert [rule for rule in messages(resource_schema()) if not any(rule.startswith(part) for part in tried)] == []


def test_the_full_example_is_admitted_as_it_is_written(api: client.CustomObjectsApi) -> None:
    found = admitted(api, merged(service(), {"spec": FULL}))["spec"]
    assert merged(found, FULL) == found


@pytest.mark.parametrize("manifest", samples())
def test_every_sample_of_the_repository_is_admitted(api: client.CustomObjectsApi, manifest: Manifest) -> None:
    # Whatever the namespace that the sample is for.
    head = {name: value for name, value in manifest["metadata"].items() if name != "namespace"}
    admitted(api, {**manifest, "metadata": head})


def test_the_smallest_service_shows_every_default_that_is_a_constant(api: client.CustomObjectsApi) -> None:
    assert admitted(api, service())["spec"] == {
        "replicas": 1,
        "model": {"uri": "simulated://llama-3.1-8b", "dtype": "auto", "quantization": "none", "kernels": "auto"},
        "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
        "kvCache": {
            "blockSize": 16,
            "dtype": "auto",
            "prefixSharing": {"mode": "Service", "retention": {"policy": "LRU"}},
            "swap": {"mode": "Recompute"},
            "watermarkPercent": 1,
        },
        "scheduling": {"maxSequences": 256, "maxQueue": 512, "queueTimeoutSeconds": 60, "policy": "FCFS"},
        "serving": {
            "maxBodyBytes": 8388608,
            "stallLimitSeconds": 60,
            "grammarTimeoutSeconds": 10,
            "vllmMetricNames": "Disabled",
        },
        "routing": {"mode": "LeastPressure", "loadCapPercent": 125},
        "tenancy": {"kvQuotaPercent": {"default": 100}},
        "rollout": {"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 600},
    }


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"kvCache": {"blokSize": 16}}, 'unknown field "spec.kvCache.blokSize"'),
        ({"podTemplate": {"nodeSelectr": {}}}, 'unknown field "spec.podTemplate.nodeSelectr"'),
        ({"kvCache": {"blockSize": 24}}, "spec.kvCache.blockSize: Unsupported value: 24"),
        ({"replicas": 1001}, "should be less than or equal to 1000"),
        ({"accelerator": {"memory": "80 GB"}}, "spec.accelerator.memory in body should match"),
        ({"model": {"uri": "meta-llama/Llama-3.1-8B"}}, "spec.model.uri in body should match"),
        ({"podTemplate": {"env": [{"name": "A", "value": ""}, {"name": "A", "value": ""}]}}, "Duplicate value"),
        ({"podTemplate": {"resources": {"limits": {"cpu": -3}}}}, "should be greater than or equal to 0"),
        ({"podTemplate": {"imagePullSecrets": ["a", "a"]}}, "Duplicate value"),
    ],
)
def test_what_the_schema_does_not_have_is_refused(api: client.CustomObjectsApi, patch: Manifest, message: str) -> None:
    assert message in refusal(api, merged(service(), {"spec": patch}))


def test_kubectl_refuses_an_unknown_field_before_it_sends_it(kubectl: Kubectl) -> None:
    given = yaml.safe_dump(service(kvCach={}))
    said = kubectl("apply", "--validate=strict", "-f", "-", given=given, fails=True)
    assert 'unknown field "spec.kvCach"' in said


def test_kubectl_explains_every_field(kubectl: Kubectl) -> None:
    # What explain reads, in one call in place of one for each of 150 fields.
    document = json.loads(kubectl("get", "--raw", OPENAPI_PATH))
    (kind,) = (schema for key, schema in document["components"]["schemas"].items() if key.endswith(names.KIND))
    wordless = [path for path, field in fields(kind) if not field.get("description")]
    assert wordless == []
    assert {path for path, _ in fields(kind)} >= {path for path, _ in fields(resource_schema())}
    assert missing_fields(document) == ()
    for path in ("spec.kvCache.budget.memoryPercent", "spec.podTemplate.env.valueFrom", "status.kv.usedPercent"):
        explained = kubectl("explain", f"{names.SHORT_NAME}.{path}")
        assert "<empty>" not in explained
        assert "in percent" in explained or "secretKeyRef" in explained


def test_every_service_can_be_edited_into_every_other_and_back(kubectl: Kubectl) -> None:
    """A default that the server writes into an object stays in it, beside whatever field an edit then gives."""
    goods = {f"edited-{index}": good for index, (_, _, good) in enumerate(RULES)}

    def listed(specs: dict[str, Manifest]) -> str:
        items = [merged(service(), {"metadata": {"name": name}, "spec": spec}) for name, spec in specs.items()]
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})

    smallest: dict[str, Manifest] = {name: {} for name in goods}
    try:
        for how in ((), ("--server-side", "--force-conflicts")):
            for specs in (smallest, goods, smallest):
                kubectl("apply", *how, "-f", "-", given=listed(specs))
    finally:
        kubectl("delete", names.PLURAL, *goods)


def test_a_scaled_number_survives_the_next_apply_of_a_manifest_without_it(kubectl: Kubectl) -> None:
    manifest = yaml.safe_dump(named("scaled"))
    kubectl("apply", "-f", "-", given=manifest)
    kubectl("scale", names.SHORT_NAME, "scaled", "--replicas=3")
    kubectl("apply", "-f", "-", given=manifest)
    assert kubectl("get", names.SHORT_NAME, "scaled", "-o", "jsonpath={.spec.replicas}") == "3"
    kubectl("delete", names.SHORT_NAME, "scaled")


def test_c02_a_spec_of_almost_200_kb_is_applied_and_edited_by_plain_apply(kubectl: Kubectl) -> None:
    """Client-side apply keeps the whole manifest in an annotation, and 256 KiB are all that annotations may have."""
    templates = [{"name": f"TEMPLATE_{index}", "value": f"{index}" * 32_000} for index in range(6)]
    for queue in (11, 12):
        spec = {"podTemplate": {"env": templates}, "scheduling": {"maxQueue": queue}}
        manifest = yaml.safe_dump(merged(named("big"), {"spec": spec}))
        assert 190_000 < len(manifest) < 200_000
        kubectl("apply", "-f", "-", given=manifest)
        found = json.loads(kubectl("get", names.SHORT_NAME, "big", "-o", "json"))
        assert merged(found["spec"], spec) == found["spec"]
        assert len(found["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]) > 190_000
    kubectl("delete", names.SHORT_NAME, "big")


def test_the_table_shows_the_columns_and_wide_shows_more(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=yaml.safe_dump(named("shown")))
    status = {
        "replicas": 3,
        "readyReplicas": 2,
        "updatedReplicas": 1,
        "ready": "2/2",
        "url": "http://shown.default.svc:8000",
        "kv": {"usedPercent": 41},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Serving",
                "message": "",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-11-29T12:00:00Z",
            }
        ],
    }
    kubectl(
        "patch", names.SHORT_NAME, "shown", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )
    heads, row = (line.split() for line in kubectl("get", names.CATEGORY, "-o", "wide").splitlines())
    assert heads == ["NAME", "MODEL", "READY", "UP-TO-DATE", "STATUS", "KV%", "AGE", "URL"]
    assert row[:6] == ["shown", "simulated://llama-3.1-8b", "2/2", "1", "Serving", "41"]
    assert row[7:] == ["http://shown.default.svc:8000"]
    kubectl("delete", names.SHORT_NAME, "shown")


_SIXTY = "a-model-name-that-uses-every-one-of-the-sixty-three-characte"


@pytest.mark.parametrize(
    "name",
    ["a", "a" * 52, "b" * 57, "c" * 58, f"{_SIXTY}rs0", f"{_SIXTY}rs1", "x9-1"],
    ids=len,
)
def test_b01_a_name_of_up_to_63_characters_is_admitted(api: client.CustomObjectsApi, name: str) -> None:
    assert admitted(api, named(name))["metadata"]["name"] == name


@pytest.mark.parametrize("name", ["d" * 64, "9lives", "a.b", "UPPER", "-a", "a-", "a_b", "ä"])
def test_b01_a_name_that_no_service_could_have_is_refused_with_what_it_must_be(
    api: client.CustomObjectsApi, name: str
) -> None:
    said = refusal(api, named(name))
    assert "must" in said or "should" in said
    assert "metadata.name" in said
