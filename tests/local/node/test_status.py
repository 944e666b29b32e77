"""A pod's status from its containers' records: phase, conditions, container states."""

from dataclasses import replace

import pytest

from pagefleet_local.node.records import (
    ContainerRecord,
    PodRecord,
    Running,
    State,
    Terminated,
    Waiting,
    from_json,
    to_json,
)
from pagefleet_local.node.status import Failure, by_type, crash_message, pod_phase, pod_status, status_patch
from tests.e2e.cluster import Object
from tests.local.node.nodes import pod

NOW = 1_800_000_000.0
DONE = Terminated(0, "Completed", "", NOW - 9, NOW - 1)
FAILED = Terminated(3, "Error", "no model\n", NOW - 9, NOW - 1)
UP = Running(10, "b", NOW - 5)
NEW = Waiting("ContainerCreating")
BACK_OFF = Waiting("CrashLoopBackOff", "back-off 10s")


def manifest(
    *names: str, inits: tuple[str, ...] = (), policy: str = "Always", sidecars: tuple[str, ...] = ()
) -> Object:
    made = pod("p", "ns", "true")
    made["metadata"]["uid"] = "u"
    made["spec"]["restartPolicy"] = policy
    made["spec"]["containers"] = [{"name": n, "image": "i"} for n in names or ("c",)]
    made["spec"]["initContainers"] = [{"name": n, "image": "i"} for n in inits] + [
        {"name": n, "image": "i", "restartPolicy": "Always"} for n in sidecars
    ]
    return made


def record(**states: State) -> PodRecord:
    """A container that is up is ready; one in a back-off or ended has run once."""
    containers = {}
    for name, state in states.items():
        is_up = isinstance(state, Running)
        last = FAILED if state == BACK_OFF else None
        starts = 0 if state == NEW else 1
        containers[name] = ContainerRecord(name, state, last, starts, started=is_up, ready=is_up)
    return PodRecord("u", "ns", "p", "127.1.0.9", 30, NOW - 10, containers=containers)


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", {}, "Pending"),
        ("Always", {"a": NEW, "b": UP}, "Pending"),
        ("Always", {"a": UP, "b": UP}, "Running"),
        ("Always", {"a": UP, "b": BACK_OFF}, "Running"),
        ("Always", {"a": BACK_OFF, "b": BACK_OFF}, "Running"),
        ("Always", {"a": DONE, "b": DONE}, "Running"),
        ("OnFailure", {"a": DONE, "b": DONE}, "Succeeded"),
        ("OnFailure", {"a": DONE, "b": BACK_OFF}, "Running"),
        ("Never", {"a": DONE, "b": DONE}, "Succeeded"),
        ("Never", {"a": DONE, "b": FAILED}, "Failed"),
        ("Never", {"a": FAILED, "b": UP}, "Running"),
    ],
)
def test_the_phase_follows_the_containers_and_the_policy(policy: str, states: dict[str, State], phase: str) -> None:
    assert pod_phase(manifest("a", "b", policy=policy), record(**states)) == phase


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", {}, "Pending"),
        ("Always", {"i": UP}, "Pending"),
        ("Always", {"i": BACK_OFF}, "Pending"),
        ("Always", {"i": DONE}, "Pending"),
        ("Always", {"i": DONE, "c": UP}, "Running"),
        ("Never", {"i": FAILED}, "Failed"),
        ("OnFailure", {"i": FAILED}, "Pending"),
    ],
)
def test_init_containers_keep_the_pod_pending_and_may_fail_it(
    policy: str, states: dict[str, State], phase: str
) -> None:
    assert pod_phase(manifest(inits=("i",), policy=policy), record(**states)) == phase


def test_a_pod_is_over_when_its_sidecars_have_ended_too() -> None:
    made = manifest(sidecars=("s",), policy="Never")
    assert pod_phase(made, record(s=UP, c=DONE)) == "Running"
    assert pod_phase(made, record(s=FAILED, c=DONE)) == "Succeeded"


def test_a_sidecar_that_restarts_does_not_make_a_running_pod_pending() -> None:
    made = manifest(sidecars=("s",))
    assert pod_phase(made, record(s=BACK_OFF, c=UP)) == "Running"
    assert conditions(made, record(s=BACK_OFF, c=UP))["Initialized"]["status"] == "True"
    assert pod_phase(made, record(s=BACK_OFF)) == "Pending"


def test_a_deleted_pod_ends_by_its_exit_codes() -> None:
    made = manifest("a", "b")
    made["metadata"]["deletionTimestamp"] = "x"
    assert pod_phase(made, record(a=DONE, b=DONE)) == "Succeeded"
    assert pod_phase(made, record(a=DONE, b=FAILED)) == "Failed"
    assert pod_phase(made, record(a=DONE, b=UP)) == "Running"


def conditions(made: Object, found: PodRecord, **more: object) -> dict[str, Object]:
    return by_type(pod_status(made, found, {}, NOW, **more)["conditions"])  # type: ignore[arg-type]


def test_conditions_name_the_containers_that_are_waited_for() -> None:
    made = manifest("a", "b", inits=("i",))
    found = conditions(made, record(i=UP))
    assert found["Initialized"]["message"] == "containers with incomplete status: [i]"
    assert found["Ready"]["reason"] == "ContainersNotReady"
    assert found["Ready"]["message"] == "containers with unready status: [a b]"
    found = conditions(made, record(i=DONE, a=UP, b=BACK_OFF))
    assert found["Initialized"]["status"] == "True"
    assert found["ContainersReady"]["message"] == "containers with unready status: [b]"


def test_a_readiness_gate_holds_ready_back_and_nothing_else() -> None:
    made = manifest()
    made["spec"]["readinessGates"] = [{"conditionType": "x/y"}]
    found = conditions(made, record(c=UP))
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "ReadinessGatesNotReady")
    assert found["ContainersReady"]["status"] == "True"
    made["status"] = {"conditions": [{"type": "x/y", "status": "True"}]}
    assert conditions(made, record(c=UP))["Ready"]["status"] == "True"


@pytest.mark.parametrize(
    ("states", "initialized", "reason"), [({"c": DONE}, "True", "PodCompleted"), ({"c": FAILED}, "True", "PodFailed")]
)
def test_a_pod_that_is_over_is_not_ready_and_says_why(states: dict[str, State], initialized: str, reason: str) -> None:
    found = conditions(manifest(policy="Never"), record(**states))
    assert found["Initialized"]["status"] == initialized
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", reason)


def test_a_sidecar_counts_for_readiness_and_not_for_initialization_once_it_started() -> None:
    made = manifest(sidecars=("s",))
    found = conditions(made, record(s=UP, c=UP))
    assert found["Initialized"]["status"] == found["Ready"]["status"] == "True"
    unready = record(s=UP, c=UP).having(ContainerRecord("s", UP, None, 1, started=True))
    assert conditions(made, unready)["Ready"]["message"] == "containers with unready status: [s]"


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    made, up = manifest(), record(c=UP)
    first = pod_status(made, up, {}, NOW)
    later = pod_status(made, up, by_type(first["conditions"]), NOW + 100)
    assert later == first
    down = pod_status(made, record(c=BACK_OFF), by_type(first["conditions"]), NOW + 100)
    times = {c["type"]: c["lastTransitionTime"] for c in down["conditions"]}
    assert times["Ready"] != times["PodScheduled"]


def test_container_states_are_shown_with_what_came_before() -> None:
    crashed = ContainerRecord("c", BACK_OFF, FAILED, num_starts=2)
    status = pod_status(manifest(), record().having(crashed), {}, NOW)["containerStatuses"][0]
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["lastState"]["terminated"]["containerID"] == status["containerID"] == "process://u/c-2"
    again = replace(crashed, state=UP, num_starts=3, started=True, ready=True)
    status = pod_status(manifest(), record().having(again), {}, NOW)["containerStatuses"][0]
    assert (status["restartCount"], status["ready"], status["started"]) == (2, True, True)
    assert status["containerID"] == "process://u/c-3"
    assert status["lastState"]["terminated"]["containerID"] == "process://u/c-2"


def test_containers_behind_init_containers_say_that_they_wait_for_them() -> None:
    made = manifest(inits=("i", "j"))
    status = pod_status(made, record(i=UP), {}, NOW)
    reasons = [s["state"].get("waiting", {}).get("reason") for s in status["initContainerStatuses"]]
    assert reasons == [None, "PodInitializing"]
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_failure_of_the_pod_as_a_whole_stands_in_its_status_and_goes_when_it_is_over() -> None:
    failed = pod_status(manifest(), record(), {}, NOW, failure=Failure("Refused", "because"))
    assert (failed["phase"], failed["reason"], failed["message"]) == ("Failed", "Refused", "because")
    fine = pod_status(manifest(), record(c=UP), {}, NOW)
    assert "reason" in fine and fine["reason"] is None


def test_the_patch_is_for_this_pod_and_no_other_of_its_name() -> None:
    assert status_patch(manifest(), {"phase": "Running"})["metadata"] == {"uid": "u"}


@pytest.mark.parametrize(("seconds", "text"), [(10, "10s"), (40, "40s"), (80, "1m20s"), (300, "5m0s")])
def test_a_back_off_is_told_in_the_kubelet_s_words(seconds: float, text: str) -> None:
    expected = f"back-off {text} restarting failed container=c pod=p_ns(u)"
    assert crash_message("c", manifest(), seconds) == expected


@pytest.mark.parametrize("state", [NEW, BACK_OFF, UP, DONE, FAILED])
def test_a_record_is_read_as_it_was_written(state: State) -> None:
    one = replace(record(c=state), devices={"c": ("GPU-a",)})
    assert from_json(to_json(one)) == one
