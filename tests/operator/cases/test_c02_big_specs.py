"""C02: a big spec, and who else writes on the resource."""

import pytest

from pagefleet_contract.names import KIND
from tests.e2e.cluster import Cluster
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, Operator, holds_for

pytestmark = pytest.mark.cluster


def _env(num_bytes: int) -> list[dict[str, str]]:
    """A chat template of that size, in the pieces that one variable may hold."""
    piece = 32_000
    return [
        {"name": f"TEMPLATE_{index}", "value": "x" * min(piece, num_bytes - start)}
        for index, start in enumerate(range(0, num_bytes, piece))
    ]


@pytest.mark.parametrize("num_bytes", [10_000, 100_000, 200_000])
def test_c02_a_big_spec_works_and_its_edits_write_no_state_anywhere(
    bed: Bed, operator: Operator, num_bytes: int
) -> None:
    bed.cluster.create(service(bed.namespace, podTemplate={"env": _env(num_bytes)}))
    for queue in (11, 12, 13):
        bed.cluster.patch(KIND, bed.namespace, "chat", {"spec": {"scheduling": {"maxQueue": queue}}})
        bed.cluster.wait_for(
            "the edit in the live settings",
            "ConfigMap",
            bed.namespace,
            "chat-live",
            lambda found, n=queue: (
                found is not None and f'"maxQueue":{n}' in found["data"]["live.json"].replace(" ", "")
            ),  # type: ignore[misc]
        )
    resource = bed.cluster.get(KIND, bed.namespace, "chat")
    engine = bed.cluster.get("Deployment", bed.namespace, "chat-engine")
    assert resource is not None and engine is not None
    assert "annotations" not in resource["metadata"] and "finalizers" not in resource["metadata"]
    template = engine["spec"]["template"]["metadata"]["annotations"]
    assert all(len(value) < 200 for value in template.values())


def test_c02_more_than_the_schema_holds_is_refused_at_once_with_the_limit(cluster: Cluster, bed: Bed) -> None:
    with pytest.raises(Exception, match=r"may not be more than 32768"):
        bed.cluster.create(service(bed.namespace, podTemplate={"env": [{"name": "T", "value": "x" * 40_000}]}))


def test_c02_another_operators_notes_on_the_resource_make_us_write_nothing(bed: Bed, operator: Operator) -> None:
    bed.cluster.create(service(bed.namespace))
    bed.cluster.wait_for("a router", "Deployment", bed.namespace, "chat-router", lambda found: found is not None)
    assert holds_for(3, lambda: True)  # its first writes are over

    notes = iter(range(10_000))
    written = operator.metric("pagefleet_operator_applies_total", result="done")

    def annotated() -> bool:
        note = {"metadata": {"annotations": {"other.example/last-handled": f"{next(notes)}" * 1000}}}
        bed.cluster.patch(KIND, bed.namespace, "chat", note)
        return True

    assert holds_for(5, annotated)
    assert operator.metric("pagefleet_operator_applies_total", result="done") == written
    for kind, name in (("Deployment", "chat-engine"), ("ConfigMap", "chat-live"), ("Service", "chat")):
        child = bed.cluster.get(kind, bed.namespace, name)
        assert child is not None
        assert "other.example/last-handled" not in child["metadata"].get("annotations", {})
