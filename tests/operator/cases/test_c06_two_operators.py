"""C06: several operators, and one that is killed or cut off."""

import itertools
import signal
from typing import Any

import pytest

from pagefleet_contract.names import KIND
from tests.e2e.api_faults import faulty_api, is_write
from tests.e2e.services import service
from tests.operator.cluster.bed import LEASE, Bed, Operator, holds_for, wait_until

pytestmark = pytest.mark.cluster

_LEASE_SECONDS = 6


def _holder(bed: Bed) -> str:
    lease: Any = bed.cluster.get("Lease", bed.namespace, LEASE)
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _set_queue(bed: Bed, name: str, queue: int) -> None:
    bed.cluster.patch(KIND, bed.namespace, name, {"spec": {"scheduling": {"maxQueue": queue}}})


def _wait_queue(bed: Bed, name: str, queue: int, seconds: float = 90) -> None:
    bed.cluster.wait_for(
        "the edit in the live settings",
        "ConfigMap",
        bed.namespace,
        f"{name}-live",
        lambda found: found is not None and f'"maxQueue":{queue}' in found["data"]["live.json"].replace(" ", ""),
        seconds,
    )


def _writes(operator: Operator) -> float:
    return operator.metric("pagefleet_operator_applies_total", result="done")


def test_c06_one_writes_the_others_watch_and_a_killed_one_is_followed(bed: Bed) -> None:
    operators = [bed.operator(f"operator-{index}", leaseSeconds=_LEASE_SECONDS) for index in (1, 2, 3)]
    with operators[0].running() as first, operators[1].running() as second, operators[2].running() as third:
        for index in range(4):
            bed.cluster.create(service(bed.namespace, f"s{index}"))
        for index in range(4):
            _set_queue(bed, f"s{index}", 100 + index)
            _wait_queue(bed, f"s{index}", 100 + index)
        assert _holder(bed) == "operator-1"
        assert [_writes(passive) for passive in (second, third)] == [0, 0]
        assert [passive.metric("pagefleet_operator_reconciles_total") for passive in (second, third)] == [0, 0]
        first.signal(signal.SIGKILL)
        _set_queue(bed, "s1", 999)
        _wait_queue(bed, "s1", 999)
        assert _holder(bed) in ("operator-2", "operator-3")
        assert sorted(bool(_writes(passive)) for passive in (second, third)) == [False, True]


def test_c06_an_operator_that_ends_lets_the_next_one_in_at_once(bed: Bed) -> None:
    first, second = bed.operator("operator-1", leaseSeconds=60), bed.operator("operator-2", leaseSeconds=60)
    with first.running(), second.running():
        wait_until("the first one leads", lambda: _holder(bed) == "operator-1")
        assert first.stop() == 0
        wait_until("the second one leads", lambda: _holder(bed) == "operator-2", seconds=10)


def test_c06_a_process_that_comes_back_under_the_same_name_goes_on_at_once(bed: Bed) -> None:
    with bed.operator(leaseSeconds=60).running() as first:
        wait_until("it leads", lambda: _holder(bed) == "operator-1")
        first.kill()
    with bed.operator(leaseSeconds=60).running():
        bed.cluster.create(service(bed.namespace))
        bed.cluster.wait_for(
            "an engine", "Deployment", bed.namespace, "chat-engine", lambda found: found is not None, seconds=10
        )


def test_c06_one_that_was_cut_off_writes_nothing_when_it_comes_back(bed: Bed) -> None:
    """Stopped like a frozen machine, with work in its queue; the other one has taken over meanwhile."""
    first = bed.operator("operator-1", leaseSeconds=_LEASE_SECONDS)
    second = bed.operator("operator-2", leaseSeconds=_LEASE_SECONDS)
    with first.running(), second.running():
        bed.cluster.create(service(bed.namespace))
        _wait_queue(bed, "chat", 512)
        # What was sent before the stop is answered after it.
        bed.cluster.wait_for(
            "the last child", "PodDisruptionBudget", bed.namespace, "chat-engine", lambda found: found is not None
        )
        assert holds_for(2, lambda: True)
        first.signal(signal.SIGSTOP)
        _set_queue(bed, "chat", 77)
        _wait_queue(bed, "chat", 77)
        assert _holder(bed) == "operator-2"
        lines = len(first.log_lines())
        first.signal(signal.SIGCONT)
        assert first.process is not None
        assert first.process.wait(30) == 4
        assert not any(line["message"].startswith("apply") for line in first.log_lines()[lines:])
        assert holds_for(2, lambda: _holder(bed) == "operator-2")


def test_c06_one_that_loses_only_the_lease_stops_writing_before_another_one_may_begin(bed: Bed) -> None:
    """Everything else still works for it, and there is work to do all the time."""
    with faulty_api(bed.control_plane.kubeconfig_for(bed.user, bed.user), bed.folder) as api:
        first = bed.operator("operator-1", api.kubeconfig, leaseSeconds=_LEASE_SECONDS)
        second = bed.operator("operator-2", leaseSeconds=_LEASE_SECONDS)
        with first.running(), second.running():
            bed.cluster.create(service(bed.namespace))
            _wait_queue(bed, "chat", 512)
            api.fail(503, times=10_000, when=lambda request: "/leases" in request.path)
            queues = itertools.count(1000)
            while _holder(bed) == "operator-1":
                _set_queue(bed, "chat", next(queues))
            mark = api.mark()
            for queue in (1, 2, 3):
                _set_queue(bed, "chat", queue)
                _wait_queue(bed, "chat", queue)
            assert api.requests(lambda request: is_write(request) and "/leases" not in request.path, after=mark) == []
            assert first.process is not None
            assert first.process.wait(30) == 4
