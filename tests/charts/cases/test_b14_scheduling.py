"""B14, the chart's part: what values ask of the operator's pod is in the pod, byte for byte."""

from typing import Any

import pytest

from tests.charts.rendering import operator_pod, render
from tests.charts.values import AFFINITY, SPREAD, TOLERATIONS


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("tolerations", TOLERATIONS),
        ("nodeSelector", {"pool": "ml", "zone": "1"}),
        ("affinity", AFFINITY),
        ("topologySpreadConstraints", SPREAD),
        ("runtimeClassName", "gpu"),
        ("priorityClassName", "low"),
    ],
)
def test_b14_what_schedules_the_operator_is_in_its_pod(value: str, given: Any) -> None:
    assert operator_pod(render({value: given}))["spec"][value] == given
    assert value not in operator_pod(render())["spec"]


def test_b14_resources_labels_annotations_environment_and_logins_are_in_the_pod() -> None:
    resources = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
    pod = operator_pod(
        render(
            {
                "resources": resources,
                "podLabels": {"team": "search"},
                "podAnnotations": {"example.com/note": "a: b"},
                "extraEnv": env,
                "settings": {"images": {"pullSecrets": ["registry"], "pullPolicy": "Always", "light": "r.example/l:2"}},
            }
        )
    )
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == resources
    assert container["env"][-1:] == env
    assert (container["image"], container["imagePullPolicy"]) == ("r.example/l:2", "Always")
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["metadata"]["labels"]["team"] == "search"
    assert pod["metadata"]["annotations"]["example.com/note"] == "a: b"


def test_b14_a_label_of_the_user_never_takes_the_place_of_one_by_which_pods_are_found() -> None:
    labels = operator_pod(render({"podLabels": {"app.kubernetes.io/name": "other"}}))["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "pagefleet"
