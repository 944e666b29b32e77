"""What a service says when its pods don't come up (B08) or load slowly (B15), and that it recovers by itself."""

from collections.abc import Callable
from typing import Any

import pytest

from pagefleet_contract.names import CONDITION_AVAILABLE, CONDITION_MODEL_FITS, CONDITION_READY, KIND
from tests.e2e.cluster import Object, condition_of, holds
from tests.e2e.fleet import Fleet
from tests.e2e.services import service, with_spec
from tests.e2e.traffic import completion

pytestmark = pytest.mark.cluster

# Within this a condition must name what is wrong, as the README promises.
_NAMED_SECONDS = 30


def _ready(found: Object | None) -> bool:
    return holds(found, CONDITION_READY)


def _shows_progress(found: Object | None) -> bool:
    return holds(found, "ModelLoaded", "False") and "%" in condition_of(found, "ModelLoaded")["message"]


def _names(*words: str) -> Callable[[Object | None], bool]:
    """Whether Ready is False for this generation with a reason or message that has one of the words."""

    def check(found: Object | None) -> bool:
        ready = condition_of(found, CONDITION_READY)
        text = f"{ready.get('reason')} {ready.get('message')}"
        return holds(found, CONDITION_READY, "False") and any(word in text for word in words)

    return check


_TROUBLES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "image": ({"image": "registry.invalid/x:1"}, ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull")),
    "claim": ({"model": {"cacheClaim": "no-such-claim"}}, ("no-such-claim",)),
    "node selector": ({"podTemplate": {"nodeSelector": {"zone": "nowhere"}}}, ("Unschedulable",)),
    "secret in the environment": (
        {
            "podTemplate": {
                "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "k"}}}]
            }
        },
        ("no-such-secret",),
    ),
    "keys secret": ({"tenancy": {"apiKeysSecret": "no-such-keys"}}, ("no-such-keys",)),
    "unknown model": ({"model": {"uri": "simulated://no-such-model"}}, ("no-such-model",)),
    "accelerator": ({"accelerator": {"resource": "example.com/none", "count": 1}}, ("example.com/none",)),
}


@pytest.mark.parametrize("trouble", sorted(_TROUBLES))
def test_b08_a_service_that_cannot_come_up_says_why_and_recovers_by_an_edit(
    fleet: Fleet, namespace: str, trouble: str
) -> None:
    spec, words = _TROUBLES[trouble]
    broken = with_spec(service(namespace), **spec)
    fleet.cluster.apply(broken)
    found = fleet.cluster.wait_for(f"a named {trouble}", KIND, namespace, "chat", _names(*words), _NAMED_SECONDS)
    assert holds(found, CONDITION_AVAILABLE, "False")
    types = [condition["type"] for condition in found["status"]["conditions"]]
    assert len(types) == len(set(types))
    fleet.cluster.apply(service(namespace))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)


def test_b08_a_secret_that_appears_later_brings_the_service_up_without_an_edit(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(with_spec(service(namespace), tenancy={"apiKeysSecret": "keys"}))
    fleet.cluster.wait_for("the missing secret", KIND, namespace, "chat", _names("keys"), _NAMED_SECONDS)
    fleet.cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "keys", "namespace": namespace},
            "stringData": {"alice": "secret-of-alice"},
        }
    )
    # A kubelet tries a missing volume again with growing pauses of up to two minutes.
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready, 150)
    url = fleet.url(namespace, "chat")
    assert fleet.post(url, "chat").status_code == 401
    assert completion(url, "chat", headers={"authorization": "Bearer secret-of-alice"})


def test_b08_deleting_every_pod_is_seen_and_repaired(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(with_spec(service(namespace), simulation={"loadSeconds": 3}))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready)
    for pod in fleet.cluster.pods(namespace, "chat"):
        fleet.cluster.delete("Pod", namespace, pod["metadata"]["name"], gracePeriodSeconds=0)
    fleet.cluster.wait_for(
        "not Available", KIND, namespace, "chat", lambda found: holds(found, CONDITION_AVAILABLE, "False"), 60
    )
    fleet.cluster.wait_for("Ready again", KIND, namespace, "chat", _ready)


def test_a_model_that_does_not_fit_gets_no_pod_and_is_told_what_would_fit(fleet: Fleet, namespace: str) -> None:
    manifest = service(
        namespace,
        model={"uri": "simulated://llama-3.1-70b"},
        accelerator={"resource": "example.com/gpu", "count": 1, "memory": "80Gi"},
        simulation={"accelerator": "h100"},
        kvCache={"budget": {"memoryPercent": 90, "blocks": None}},
    )
    del manifest["spec"]["kvCache"]["budget"]["blocks"]
    fleet.cluster.apply(manifest)
    found = fleet.cluster.wait_for(
        "a refusal", KIND, namespace, "chat", lambda now: holds(now, CONDITION_MODEL_FITS, "False"), _NAMED_SECONDS
    )
    assert "GiB" in condition_of(found, CONDITION_MODEL_FITS)["message"]
    assert not fleet.cluster.pods(namespace, "chat")


def test_b15_a_slow_load_is_never_killed_and_shows_its_progress(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(with_spec(service(namespace), simulation={"loadSeconds": 40}))
    fleet.cluster.wait_for("load progress", KIND, namespace, "chat", _shows_progress)
    url = fleet.url(namespace, "chat")
    assert fleet.post(url, "chat").status_code == 503
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready, 90)
    (pod,) = fleet.cluster.pods(namespace, "chat")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_b15_a_quick_load_is_ready_within_ten_seconds(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(with_spec(service(namespace), simulation={"loadSeconds": 2}))
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", _ready, 10)


def test_b15_a_load_beyond_the_users_limit_is_restarted_and_named(fleet: Fleet, namespace: str) -> None:
    fleet.cluster.apply(
        with_spec(service(namespace), simulation={"loadSeconds": 3600}, serving={"startTimeoutSeconds": 5})
    )
    fleet.cluster.wait(
        "a restart",
        "Pod",
        namespace,
        lambda pods: any(
            status["restartCount"] > 0 for pod in pods for status in pod["status"].get("containerStatuses", [])
        ),
        90,
        "pagefleet.dev/component=engine",
    )
    fleet.cluster.wait_for(
        "the limit", KIND, namespace, "chat", _names("CrashLoopBackOff", "StartTimeout", "startTimeoutSeconds"), 60
    )
