"""C08: a service that is deleted while work for it waits, and another one of its name."""

import pytest

from pagefleet_contract.names import KIND
from tests.e2e.api_faults import Request, faulty_api, is_write
from tests.e2e.cluster import Object, holds
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, Operator, holds_for, wait_until

pytestmark = pytest.mark.cluster

_TWO_TYPES = {"name": "nothing", "hostPath": {"path": "/x"}, "emptyDir": {}}


def _create_refused(bed: Bed) -> Object:
    created = bed.cluster.create(service(bed.namespace, podTemplate={"volumes": [_TWO_TYPES]}))
    bed.cluster.wait_for(
        "a refusal", KIND, bed.namespace, "chat", lambda found: holds(found, "Progressing", "False", "Invalid")
    )
    return created


def test_c08_a_service_in_backoff_goes_at_once_and_is_not_looked_at_again(bed: Bed, operator: Operator) -> None:
    _create_refused(bed)
    bed.cluster.delete(KIND, bed.namespace, "chat")
    bed.cluster.wait_for("gone", KIND, bed.namespace, "chat", lambda found: found is None, seconds=15)
    wait_until("the last look", lambda: operator.metric("pagefleet_operator_queue_depth") == 0)
    assert holds_for(1, lambda: True)
    looks = operator.metric("pagefleet_operator_reconcile_seconds_count")
    assert holds_for(6, lambda: operator.metric("pagefleet_operator_reconcile_seconds_count") == looks)


def test_c08_a_new_service_of_the_name_is_not_touched_by_work_of_the_old_one(bed: Bed, operator: Operator) -> None:
    for _ in range(5):
        old = _create_refused(bed)
        bed.cluster.delete(KIND, bed.namespace, "chat")
        bed.cluster.wait_for("gone", KIND, bed.namespace, "chat", lambda found: found is None, seconds=15)
        new = bed.cluster.create(service(bed.namespace))
        told = bed.cluster.wait_for(
            "an engine, with the old children gone",
            "Deployment",
            bed.namespace,
            "chat-engine",
            lambda found, uid=new["metadata"]["uid"]: (
                found is not None  # type: ignore[misc]
                and [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [uid]
            ),
            seconds=90,
        )
        assert old["metadata"]["uid"] not in str(told)
        resource = bed.cluster.get(KIND, bed.namespace, "chat")
        assert resource is not None
        assert not holds(resource, "Progressing", "False", "Invalid")
        bed.cluster.delete(KIND, bed.namespace, "chat")
        bed.cluster.wait_for("gone", KIND, bed.namespace, "chat", lambda found: found is None, seconds=15)


def test_c08_work_that_is_going_on_stops_when_its_service_is_deleted(bed: Bed) -> None:
    with faulty_api(bed.control_plane.kubeconfig_for(bed.user, bed.user), bed.folder) as api:
        with bed.operator(kubeconfig=api.kubeconfig).running():
            api.delay(1.0, when=_is_childs_write)
            bed.cluster.create(service(bed.namespace))
            api.wait_for_request(_is_childs_write, times=2)
            bed.cluster.delete(KIND, bed.namespace, "chat")
            bed.cluster.wait_for("gone", KIND, bed.namespace, "chat", lambda found: found is None, seconds=15)
            # The one that is on its way, and another one before the news comes.
            assert holds_for(6, lambda: len(api.requests(_is_childs_write)) <= 4)


def _is_childs_write(request: Request) -> bool:
    return is_write(request) and "/leases" not in request.path and not request.path.endswith("/status")
