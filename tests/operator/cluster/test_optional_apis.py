"""What not every cluster has: an API that is found when it comes, and a definition with every field that we know."""

import json
from typing import Any

import pytest
import yaml
from kubernetes import config

from pagefleet_contract.installed_schema import OPENAPI_PATH, missing_fields
from pagefleet_contract.names import CRD_NAME, KIND
from tests.e2e.services import service
from tests.operator.cluster.bed import CRD, Bed, wait_until

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


def test_b11_pod_monitors_come_with_their_api_and_its_absence_harms_nothing(bed: Bed) -> None:
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


def test_b17_an_operator_newer_than_the_definition_names_what_that_lacks(bed: Bed) -> None:
    own = yaml.safe_load(CRD.read_text())
    older = yaml.safe_load(CRD.read_text())
    (version,) = older["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tenancy"]
    # Its rules and defaults go with it: they may not name what isn't there.
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
    bed.cluster.apply(older)
    try:
        wait_until("the server describes it so", lambda: not _describes_tenancy(bed), 30)
        with bed.operator().running() as operator:
            wait_until("the field is named", lambda: operator.says(f"{CRD_NAME} is older than this operator"), 30)
            assert operator.says("lacks spec.tenancy:")
            assert operator.metric("pagefleet_operator_crd_missing_fields") == 1
    finally:
        bed.cluster.apply(own)
        wait_until("the server describes it so", lambda: _describes_tenancy(bed), 30)


def _describes_tenancy(bed: Bed) -> bool:
    api = config.new_client_from_config(str(bed.control_plane.kubeconfig))
    answer = api.call_api("GET", api.configuration.host + OPENAPI_PATH)
    answer.read()
    return "spec.tenancy" not in missing_fields(json.loads(answer.data))
