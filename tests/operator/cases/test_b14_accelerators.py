"""B14: every accelerator key and every scheduling field arrives in the pod, byte for byte."""

from typing import Any

import pytest

from tests.operator.builders import REAL, applied, engine, observed, planned, spec

TOLERATIONS = [{"operator": "Exists"}, {"key": "pool", "value": "ml", "effect": "NoSchedule", "operator": "Equal"}]
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    }
}
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}]


def pod(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine(applied(planned(observed(spec(REAL, **fields)))))["spec"]["template"]["spec"]
    return found


def resources(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(**fields)["containers"][0]["resources"]
    return found


@pytest.mark.parametrize("key", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/x.Y_z"])
def test_b14_every_accelerator_is_a_limit_of_its_own_name_and_the_only_one(key: str) -> None:
    assert resources(accelerator={"resource": key, "memory": "80Gi"}) == {"limits": {key: "1"}}


def test_b14_a_cpu_service_asks_for_cores_and_memory_and_for_no_accelerator() -> None:
    found = resources(accelerator={"resource": "cpu", "count": 4, "memory": "16Gi"})
    assert found == {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
    assert resources(accelerator={"resource": "cpu"}) == {"requests": {"cpu": "1"}}


def test_b14_resources_of_the_pod_template_come_beside_the_accelerator_and_win_over_its_defaults() -> None:
    asked = {"requests": {"cpu": "500m", "memory": "8Gi"}, "limits": {"memory": "9Gi"}}
    found = resources(accelerator={"resource": "cpu", "count": 4, "memory": "16Gi"}, podTemplate={"resources": asked})
    assert found == asked
    found = resources(podTemplate={"resources": asked})
    assert found == {"requests": asked["requests"], "limits": {"nvidia.com/gpu": "1", "memory": "9Gi"}}


def test_b14_a_simulated_service_asks_for_the_accelerator_that_is_named() -> None:
    found = resources(
        model={"uri": "simulated://llama-3.1-8b"}, accelerator={"resource": "example.com/gpu", "count": 2}
    )
    assert found["limits"] == {"example.com/gpu": "2"}


def test_b14_scheduling_fields_are_in_the_pod_as_written() -> None:
    found = pod(
        podTemplate={
            "nodeSelector": {"pool": "ml"},
            "tolerations": TOLERATIONS,
            "affinity": AFFINITY,
            "topologySpreadConstraints": SPREAD,
            "runtimeClassName": "gpu",
            "priorityClassName": "low",
            "schedulerName": "mine",
            "imagePullSecrets": ["registry"],
        }
    )
    assert found["nodeSelector"] == {"pool": "ml"}
    assert found["tolerations"] == TOLERATIONS
    assert found["affinity"] == AFFINITY
    assert found["topologySpreadConstraints"] == SPREAD
    assert (found["runtimeClassName"], found["priorityClassName"], found["schedulerName"]) == ("gpu", "low", "mine")
    assert found["imagePullSecrets"] == [{"name": "registry"}]


def test_b14_what_is_not_asked_for_is_not_there() -> None:
    fields = {"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "runtimeClassName"}
    fields |= {"priorityClassName", "schedulerName", "imagePullSecrets"}
    assert fields.isdisjoint(pod())


def test_b14_taking_a_field_out_rolls_the_pods() -> None:
    with_it = engine(applied(planned(observed(spec(REAL, podTemplate={"tolerations": TOLERATIONS})))))
    without = engine(applied(planned(observed(spec(REAL)))))
    hashes = [found["spec"]["template"]["metadata"]["annotations"] for found in (with_it, without)]
    assert hashes[0] != hashes[1]
