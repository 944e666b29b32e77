"""A pod as planning sees it, and why it doesn't come up."""

from typing import Any

import pytest

from pagefleet_operator.observed import Trouble
from pagefleet_operator.pods import pod_from_manifest


def manifest(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    given = {
        "name": "chat-engine-a",
        "uid": "u",
        "creationTimestamp": "2026-11-29T12:00:00Z",
        "labels": {"pagefleet.dev/component": "engine"},
    }
    return {"metadata": {**given, **metadata}, "status": status or {}}


def conditions(**holds: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status} for kind, status in holds.items()]


def container(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    return {"name": "engine", "state": state, "lastState": last or {}, "restartCount": restarts}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def warning(reason: str, message: str, at: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": at}


def trouble(status: dict[str, Any], *events: dict[str, Any]) -> Trouble | None:
    return pod_from_manifest(
        manifest({"conditions": conditions(PodScheduled="True", Ready="False"), **status}), events
    ).trouble


def test_a_ready_pod_has_what_planning_asks_for() -> None:
    pod = pod_from_manifest(
        {
            **manifest(
                {"podIP": "fd00::1", "conditions": conditions(PodScheduled="True", Ready="True"), "phase": "Running"},
                annotations={
                    "pagefleet.dev/template-hash": "abc",
                    "controller.kubernetes.io/pod-deletion-cost": "-7",
                },
            ),
            "spec": {
                "containers": [
                    {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "500m"}}},
                    {"resources": {"requests": {"cpu": "1"}}},
                    {},
                ]
            },
        }
    )
    assert (pod.name, pod.component, pod.ip, pod.template_hash) == ("chat-engine-a", "engine", "fd00::1", "abc")
    assert (pod.ready, pod.scheduled, pod.deleting, pod.finished, pod.trouble) == (True, True, False, False, None)
    assert (pod.created_seconds, pod.deletion_cost) == (1795953600.0, -7)
    assert pod.requests == {"nvidia.com/gpu": "1", "cpu": "1.500"}


def test_a_pod_that_nobody_has_touched_yet_is_nothing_but_there() -> None:
    pod = pod_from_manifest(manifest())
    assert (pod.ready, pod.scheduled, pod.ip, pod.template_hash, pod.trouble) == (False, False, None, None, None)


def test_a_pod_that_is_marked_as_draining_does_not_count_as_ready() -> None:
    status = {"conditions": conditions(PodScheduled="True", Ready="True")}
    pod = pod_from_manifest(manifest(status, annotations={"pagefleet.dev/drain": ""}))
    assert not pod.ready
    assert pod.trouble == Trouble("Draining", "it is marked by pagefleet.dev/drain and gets no new requests")


def test_a_deletion_cost_that_is_no_number_is_none() -> None:
    annotations = {"controller.kubernetes.io/pod-deletion-cost": "much"}
    assert pod_from_manifest(manifest(annotations=annotations)).deletion_cost is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [container(waiting("ContainerCreating"))]}, None),
        ({"containerStatuses": [container({"running": {}})]}, None),
        ({"containerStatuses": [container(ended(0, "Completed"))]}, None),
        (
            {"containerStatuses": [container(waiting("ImagePullBackOff", "Back-off pulling"))]},
            Trouble("ImagePullBackOff", "Back-off pulling"),
        ),
        (
            {"containerStatuses": [container(waiting("ImagePullBackOff", 'Back-off "x": ErrImagePull: no: such'))]},
            Trouble("ErrImagePull", "no: such"),
        ),
        (
            {"containerStatuses": [container(waiting("CreateContainerConfigError", 'secret "s" not found'))]},
            Trouble("CreateContainerConfigError", 'secret "s" not found'),
        ),
        (
            {"containerStatuses": [container(waiting("ContainerCreating", "volume keys: no secret"))]},
            Trouble("ContainerCreating", "volume keys: no secret"),
        ),
        (
            {
                "containerStatuses": [
                    container(waiting("CrashLoopBackOff", "back-off"), ended(1, message="no\nmodel"), 3)
                ]
            },
            Trouble("CrashLoopBackOff", "no model"),
        ),
        (
            {"containerStatuses": [container(waiting("CrashLoopBackOff", "back-off"), ended(3), 3)]},
            Trouble("CrashLoopBackOff", "container engine ended with exit code 3 and said nothing"),
        ),
        (
            {"containerStatuses": [container({"running": {}}, ended(1, message="no model"), 3)]},
            Trouble("CrashLoopBackOff", "no model"),
        ),
        ({"containerStatuses": [container({"running": {}}, ended(0, "Completed"), 1)]}, None),
        (
            {"containerStatuses": [container({"running": {}}, ended(0, "Completed"), 2)]},
            Trouble("CrashLoopBackOff", "container engine ended with exit code 0 and said nothing"),
        ),
        (
            {"containerStatuses": [container(ended(1, message="no model"))]},
            Trouble("CrashLoopBackOff", "no model"),
        ),
        (
            {"containerStatuses": [container({"running": {}}, ended(137, "OOMKilled"), 1)]},
            Trouble(
                "OOMKilled",
                "container engine took more memory than its limit and was killed; raise accelerator.memory "
                "(or podTemplate.resources.limits.memory, if set)",
            ),
        ),
        (
            {"containerStatuses": [container(waiting("ErrImagePull", "gone"), ended(1, message="old words"), 1)]},
            Trouble("ErrImagePull", "gone"),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            Trouble("Evicted", "The node was low on resource: memory."),
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(ended(2, message="bad flags"))]},
            Trouble("Failed", "bad flags"),
        ),
        # An end by the node says nothing of the next start.
        ({"containerStatuses": [container({"running": {}}, ended(143, "NodeStopped", "node stopped"), 3)]}, None),
        ({"containerStatuses": [container(waiting("ContainerCreating"), ended(143, "NodeStopped"), 1)]}, None),
        ({"containerStatuses": [container(ended(143, "NodeStopped", "node stopped"))]}, None),
        ({"containerStatuses": [container({"running": {}}, ended(255, "Unknown"), 1)]}, None),
        ({"phase": "Failed"}, Trouble("Failed", "the pod has failed and nothing says why")),
        (
            {"initContainerStatuses": [container(waiting("ErrImagePull", "gone"))], "containerStatuses": []},
            Trouble("ErrImagePull", "gone"),
        ),
    ],
)
def test_the_containers_say_what_is_wrong(status: dict[str, Any], expected: Trouble | None) -> None:
    assert trouble(status) == expected


LOGGED = "2026-11-30 02:22:18,123 {} pagefleet_runtime.serving: {}"


@pytest.mark.parametrize(
    ("limit", "said", "told"),
    [
        ("512Mi", LOGGED.format("INFO", "listening on [::]:8000"), "its limit of 512Mi and was killed; raise "),
        ("512Mi", LOGGED.format("ERROR", "boom"), "(its last words: ERROR pagefleet_runtime.serving: boom)"),
        (None, LOGGED.format("INFO", "listening on [::]:8000"), "more memory than its limit and was killed; raise "),
    ],
)
def test_a_container_that_took_too_much_memory_is_told_of_with_its_limit_and_the_way_out(
    limit: str | None, said: str, told: str
) -> None:
    status = {"containerStatuses": [container(waiting("CrashLoopBackOff"), ended(137, "OOMKilled", said), 2)]}
    pod = manifest({"conditions": conditions(PodScheduled="True", Ready="False"), **status})
    limits = {} if limit is None else {"memory": limit}
    pod["spec"] = {"containers": [{"name": "other"}, {"name": "engine", "resources": {"limits": limits}}]}
    found = pod_from_manifest(pod).trouble
    assert found is not None and found.reason == "OOMKilled"
    assert told in found.message and "raise accelerator.memory" in found.message
    assert "listening" not in found.message


def test_a_pod_that_finds_no_node_says_the_schedulers_words() -> None:
    told = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": told}
    assert trouble({"conditions": [unscheduled]}) == Trouble("Unschedulable", told)


def test_a_ready_pod_has_no_trouble_whatever_was_before() -> None:
    status = {
        "conditions": conditions(PodScheduled="True", Ready="True"),
        "containerStatuses": [container({"running": {}}, ended(1, message="once"), 1)],
    }
    assert trouble(status, warning("Unhealthy", "once", "2026-11-29T12:00:00Z")) is None


def test_of_a_container_that_is_not_made_the_newest_warning_says_why() -> None:
    creating = {"containerStatuses": [container(waiting("ContainerCreating"))]}
    old = warning("FailedAttachVolume", "busy", "2026-11-29T12:00:01Z")
    new = warning("FailedMount", 'secret "keys" not found', "2026-11-29T12:00:02Z")
    normal = {**warning("Scheduled", "", "2026-11-29T12:00:03Z"), "type": "Normal"}
    assert trouble(creating, new, normal, old) == Trouble("FailedMount", 'secret "keys" not found')


def test_events_of_a_pod_whose_container_runs_are_old_news() -> None:
    running = {"containerStatuses": [container({"running": {}})]}
    assert trouble(running, warning("FailedMount", "was late", "2026-11-29T12:00:00Z")) is None


def test_last_words_that_are_long_keep_their_end() -> None:
    words = "x" * 5000 + " the error"
    found = trouble({"containerStatuses": [container(ended(1, message=words))]})
    assert found is not None
    assert found.message.endswith(" the error") and len(found.message) == 2000


def test_a_crash_loop_says_the_same_in_each_of_its_states() -> None:
    words = "2026-11-30 02:22:{second},1 INFO loading\n2026-11-30 02:22:{second},2 ERROR no model (pid {second})"

    def end(second: int) -> dict[str, Any]:
        return ended(1, message=words.format(second=second))

    states = [
        container(end(10)),
        container(waiting("CrashLoopBackOff", "back-off 10s restarting failed container"), end(10), 1),
        container({"running": {}}, end(10), 2),
        container(end(33), end(10), 2),
        container(waiting("CrashLoopBackOff", "back-off 20s restarting failed container"), end(33), 2),
        container({"running": {}}, end(33), 3),
    ]
    found = {trouble({"containerStatuses": [state]}) for state in states}
    assert found == {Trouble("CrashLoopBackOff", "ERROR no model (pid …)")}
