"""The API server refuses, is slow, forgets, falls silent: the operator goes on, or says that it can't and ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagefleet_contract.names import KIND, PATH_READY
from pagefleet_operator.kinds import watched
from tests.e2e.api_faults import FaultyApi, Request, faulty_api, is_list, is_watch, is_write
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, Operator, wait_until

pytestmark = pytest.mark.cluster


@contextmanager
def _faulty(bed: Bed) -> Iterator[FaultyApi]:
    """A proxy that passes on what it is asked under the operator's own login."""
    with faulty_api(bed.control_plane.kubeconfig_for(bed.user, bed.user), bed.folder) as api:
        yield api


def _about(plural: str) -> Any:
    return lambda request: f"/{plural}" in request.path


def _wait_engine(bed: Bed, name: str = "chat", seconds: float = 60) -> None:
    bed.cluster.wait_for(
        "an engine", "Deployment", bed.namespace, f"{name}-engine", lambda found: found is not None, seconds
    )


def _wait_gone(bed: Bed, kind: str, name: str, seconds: float = 90) -> None:
    bed.cluster.wait_for("it is gone", kind, bed.namespace, name, lambda found: found is None, seconds)


def test_writes_that_are_refused_for_now_are_done_later(bed: Bed) -> None:
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig).running() as operator:
        api.fail(429, retry_after=1, times=2, when=lambda request: is_write(request) and "/deployments" in request.path)
        api.fail(500, times=2, when=lambda request: is_write(request) and "/services/" in request.path)
        api.fail(409, times=1, when=lambda request: is_write(request) and request.path.endswith("/status"))
        bed.cluster.create(service(bed.namespace))
        _wait_engine(bed)
        bed.cluster.wait_for("a front door", "Service", bed.namespace, "chat", lambda found: found is not None)
        bed.cluster.wait_for(
            "a status",
            KIND,
            bed.namespace,
            "chat",
            lambda found: found is not None and "conditions" in found.get("status", {}),
        )
        assert operator.metric("pagefleet_operator_applies_total", result="temporary") >= 3
        assert not [e for e in bed.cluster.all("Event", bed.namespace) if e["reason"] == "TooManyRequests"]


def test_the_first_lists_may_be_refused_for_a_while(bed: Bed) -> None:
    with _faulty(bed) as api:
        api.fail(429, times=6, when=lambda request: is_list(request) and "/inferenceservices" in request.path)
        with bed.operator(kubeconfig=api.kubeconfig).running():
            bed.cluster.create(service(bed.namespace))
            _wait_engine(bed)


def test_what_went_while_a_watch_had_lost_its_place_is_found(bed: Bed) -> None:
    """After 410 kopf lists anew, and a list doesn't say what is missing."""
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig).running() as operator:
        for name in ("stays", "goes"):
            bed.cluster.create(service(bed.namespace, name))
            _wait_engine(bed, name)
            bed.cluster.wait_for(
                "a router", "Deployment", bed.namespace, f"{name}-router", lambda found: found is not None
            )
        gone = {(kind, _uid(bed, kind, name)) for kind, name in (("Service", "stays"), (KIND, "goes"))}
        api.silence_watches()
        bed.cluster.delete("Service", bed.namespace, "stays")
        bed.cluster.delete(KIND, bed.namespace, "goes")
        _wait_gone(bed, "Service", "stays")
        _wait_gone(bed, KIND, "goes")
        api.speak()
        assert api.expire_watches(_about("namespaces")) >= 7
        bed.cluster.wait_for("a new one", "Service", bed.namespace, "stays", lambda found: found is not None, 30)
        wait_until("only one service is known", lambda: operator.metric("pagefleet_operator_services") == 6, 30)
        wait_until("the comparison found them", lambda: gone <= _found_gone(operator), 30, operator.log)


def _uid(bed: Bed, kind: str, name: str) -> str:
    found = bed.cluster.wait_for("it is there", kind, bed.namespace, name, lambda found: found is not None)
    assert found is not None
    return str(found["metadata"]["uid"])


def _found_gone(operator: Operator) -> set[tuple[str, str]]:
    """Return kind and uid of what the comparison with the cluster found."""
    found = "found gone without a word of the watch"
    return {(line["kind"], line["uid"]) for line in operator.log_lines() if line["message"] == found}


def test_cut_watches_lose_nothing(bed: Bed) -> None:
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig).running():
        bed.cluster.create(service(bed.namespace))
        _wait_engine(bed)
        for index in range(5):
            api.cut_watches()
            bed.cluster.patch(KIND, bed.namespace, "chat", {"spec": {"replicas": index + 2}})
            bed.cluster.wait_for(
                "the number",
                "Deployment",
                bed.namespace,
                "chat-engine",
                lambda found, n=index + 2: found is not None and found["spec"]["replicas"] == n,  # type: ignore[misc]
                30,
            )


def test_silent_watches_fail_liveness_and_are_noticed_by_the_lease(bed: Bed) -> None:
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig, leaseSeconds=6).running() as operator:
        wait_until("it is live", operator.is_live)
        api.silence_watches()
        wait_until("liveness fails", lambda: not operator.is_live(), 40)
        api.speak()
        wait_until("it is live again", operator.is_live, 40)


def test_an_api_server_that_is_slow_is_waited_for(bed: Bed) -> None:
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig, leaseSeconds=30).running() as operator:
        api.delay(1.0)
        bed.cluster.create(service(bed.namespace))
        _wait_engine(bed)
        assert operator.is_live()


def test_a_token_that_is_replaced_is_read_anew(bed: Bed, tmp_path: Path) -> None:
    tokens = tmp_path / "token"
    _bind_service_account(bed)
    tokens.write_text(bed.cluster.token(bed.namespace, "operator"))
    with faulty_api(bed.control_plane.kubeconfig, bed.folder) as api:
        with bed.operator(kubeconfig=api.kubeconfig_with(token_file=tokens)).running() as operator:
            # The account's old tokens are refused from now on.
            bed.cluster.delete("ServiceAccount", bed.namespace, "operator")
            _bind_service_account(bed)
            tokens.write_text(bed.cluster.token(bed.namespace, "operator"))
            api.wait_for_request(lambda request: request.status == 401, seconds=90)
            api.cut_watches()
            bed.cluster.create(service(bed.namespace))
            _wait_engine(bed)
            assert not _ended(operator)


def test_a_login_that_is_refused_for_good_ends_the_operator(bed: Bed, tmp_path: Path) -> None:
    """kopf gives up on its watches one by one and would wait for the last for ever."""
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig).running() as operator:
        num_watches = len(watched(cluster_wide=False))
        wait_until("every watch is seen", lambda: operator.says(f"{num_watches} watches run"), told=operator.log)
        api.fail(401, times=10_000, when=is_watch)
        api.cut_watches()
        assert operator.process is not None
        # Which of kopf's tasks ends first, and so what we say of it, is chance; the cause is said in each case.
        assert operator.process.wait(40) == 1
        assert operator.says("Ran out of valid credentials")


def test_an_operator_that_loses_the_api_for_long_stops_writing_and_ends(bed: Bed) -> None:
    with _faulty(bed) as api, bed.operator(kubeconfig=api.kubeconfig, leaseSeconds=6).running() as operator:
        api.fail(503, times=10_000, when=lambda request: "/leases" in request.path and not is_watch(request))
        assert operator.process is not None
        assert operator.process.wait(30) == 4
        assert operator.says("the Lease is lost")


def test_an_absent_crd_is_said_and_ends_the_operator(bed: Bed) -> None:
    def is_our_api(request: Request) -> bool:
        return request.path == "/apis/pagefleet.dev/v1alpha1"

    with _faulty(bed) as api:
        api.fail(404, times=1000, when=is_our_api)
        operator = bed.operator(kubeconfig=api.kubeconfig).start()
        try:
            wait_until("it answers", lambda: operator.answers(PATH_READY) is not None)
            wait_until("it says why it isn't ready", lambda: "isn't installed" in operator.text(PATH_READY), 30)
            assert operator.answers(PATH_READY) == 503
            assert operator.is_live()
            assert operator.process is not None
            assert operator.process.wait(40) == 3
            assert operator.says("isn't installed; install the chart with crds.install=true")
        finally:
            operator.kill()


def test_b20_a_right_that_is_taken_away_is_said_and_fails_health(bed: Bed, operator: Operator) -> None:
    assert operator.is_live()
    bed.grant(without=("pods",))
    wait_until("liveness fails", lambda: not operator.is_live(), 60)
    assert operator.says("a right is missing")
    bed.grant()
    wait_until("it is live again, or ended to be restarted", lambda: operator.is_live() or _ended(operator), 60)


def test_b20_without_the_right_to_list_it_never_gets_ready_and_ends(bed: Bed) -> None:
    bed.grant(without=("services",))
    operator = bed.operator().start()
    try:
        wait_until("it ends", lambda: _ended(operator), 60)
        assert operator.process is not None and operator.process.returncode == 1
        assert operator.says("services")
    finally:
        operator.kill()


def _ended(operator: Operator) -> bool:
    return operator.process is not None and operator.process.poll() is not None


def _bind_service_account(bed: Bed) -> None:
    bed.cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": bed.namespace}}
    )
    bed.cluster.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "operator-account", "namespace": bed.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": bed.namespace}],
        }
    )
