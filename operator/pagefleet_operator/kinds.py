"""The kinds that a service's children have, and the paths under which the API serves them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import API_VERSION, KIND, PLURAL


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One kind: apiVersion, kind and plural."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def base(self) -> str:
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all of a namespace; of all namespaces where it is None."""
        within = f"/namespaces/{namespace}" if namespace is not None else ""
        return "/".join(part for part in (f"{self.base}{within}/{self.plural}", name, subresource) if part)


INFERENCE_SERVICE = ResourceKind(API_VERSION, KIND, PLURAL)
POD = ResourceKind("v1", "Pod", "pods")
EVENT = ResourceKind("v1", "Event", "events")
LEASE = ResourceKind("coordination.k8s.io/v1", "Lease", "leases")
POD_MONITOR = ResourceKind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")

# What is watched as a service's children, in every cluster.
CHILDREN = (
    ResourceKind("apps/v1", "Deployment", "deployments"),
    ResourceKind("v1", "Service", "services"),
    ResourceKind("v1", "ConfigMap", "configmaps"),
    ResourceKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ResourceKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
)
# Further children where scope is Cluster: the chart makes the routers' accounts in namespaces that it knows.
ACCOUNT_CHILDREN = (
    ResourceKind("v1", "ServiceAccount", "serviceaccounts"),
    ResourceKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
)
WRITTEN = (*CHILDREN, *ACCOUNT_CHILDREN, POD_MONITOR)


def watched(*, cluster_wide: bool) -> tuple[ResourceKind, ...]:
    """Return the kinds that are watched."""
    return (INFERENCE_SERVICE, POD, *CHILDREN, *(ACCOUNT_CHILDREN if cluster_wide else ()))


def kind_of(manifest: Mapping[str, Any]) -> ResourceKind:
    """Return the kind of a child's manifest. Raises KeyError for one that no service has."""
    return kind_named(manifest["apiVersion"], manifest["kind"])


def kind_named(api_version: str, kind: str) -> ResourceKind:
    for known in WRITTEN:
        if (known.api_version, known.kind) == (api_version, kind):
            return known
    raise KeyError(f"{api_version} {kind} is no child's kind; add it to kinds.CHILDREN, and its rights to the contract")
