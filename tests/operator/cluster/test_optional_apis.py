"""An API that not every cluster has: found when it comes, and no loss where it isn't."""

from typing import Any

import pytest

from pagefleet_contract.names import KIND
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, wait_until

pytestmark = pytest.mark.cluster

_MONITORS = "podmonitors.monitoring.coreos.com"
_API = "monitoring.coreos.com/v1"
_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": _MONITORS},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}


def _notes(bed: Bed) -> str:
    found = bed.cluster.get(KIND, bed.namespace, "chat") or {}
    return str(((found.get("status") or {}).get("effective") or {}).get("notes", ""))


def test_pod_monitors_come_with_their_api_and_its_absence_harms_nothing(bed: Bed) -> None:
    with bed.operator(podMonitors="Enabled").running() as operator:
        bed.cluster.create(service(bed.namespace))
        bed.cluster.wait_for("an engine", "Deployment", bed.namespace, "chat-engine", lambda found: found is not None)
        wait_until("the note that the API isn't there", lambda: "PodMonitor" in _notes(bed), 60, lambda: _notes(bed))
        bed.cluster.create(_CRD)
        try:
            # It is looked for once a minute.
            wait_until("the operator knows", lambda: operator.says("optional APIs changed"), 90)
            bed.cluster.wait_for(
                "a monitor", "PodMonitor", bed.namespace, "chat", lambda found: found is not None, version=_API
            )
            bed.cluster.delete("PodMonitor", bed.namespace, "chat", version=_API)
            bed.cluster.patch(KIND, bed.namespace, "chat", {"spec": {"replicas": 2}})
            bed.cluster.wait_for(
                "a new one", "PodMonitor", bed.namespace, "chat", lambda found: found is not None, version=_API
            )
        finally:
            bed.cluster.delete("CustomResourceDefinition", None, _MONITORS, version="apiextensions.k8s.io/v1")
