"""The account under which a router watches its replicas. In namespaces that the chart knows it is the chart's, one for
all routers; where the operator looks after all namespaces it is a child of the service, bound to the chart's
ClusterRole."""

from pagefleet_contract.names import COMPONENT_ROUTER, ROUTER_SERVICE_ACCOUNT
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.manifests.metadata import Manifest, Owner, child

_RBAC = "rbac.authorization.k8s.io"


def router_account_name(owner: Owner, settings: OperatorSettings) -> str:
    return owner.child(COMPONENT_ROUTER) if settings.scope == "Cluster" else ROUTER_SERVICE_ACCOUNT


def router_account(owner: Owner) -> Manifest:
    name = owner.child(COMPONENT_ROUTER)
    # The router's pod asks for its token by itself.
    return {
        **child(owner, "v1", "ServiceAccount", name, COMPONENT_ROUTER),
        "automountServiceAccountToken": False,
    }


def router_binding(owner: Owner) -> Manifest:
    name = owner.child(COMPONENT_ROUTER)
    return {
        **child(owner, f"{_RBAC}/v1", "RoleBinding", name, COMPONENT_ROUTER),
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": ROUTER_SERVICE_ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
