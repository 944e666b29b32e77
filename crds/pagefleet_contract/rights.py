"""What the operator and the routers may do in a cluster, verb by verb. The chart renders roles from this table, and a
test compares the verbs that were used with it."""

from dataclasses import dataclass
from typing import Literal

from pagefleet_contract.names import GROUP, PLURAL

# Where a right is needed: in each namespace that is looked after, or in the operator's own.
Place = Literal["watched", "own"]

_CHILD_VERBS = ("create", "delete", "get", "list", "patch", "watch")
# Of children that every service has for as long as it lives: the garbage collector takes them away.
_LASTING_CHILD_VERBS = ("create", "get", "list", "patch", "watch")


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on resources of one API group. `named` holds where only the operator's own Lease is meant."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    place: Place = "watched"
    named: bool = False
    optional: bool = False  # only where the settings ask for it


OPERATOR_RIGHTS = (
    Right(GROUP, (PLURAL,), ("list", "watch")),
    Right(GROUP, (f"{PLURAL}/status",), ("patch",)),
    # Asked for by clusters that guard owner references (OwnerReferencesPermissionEnforcement).
    Right(GROUP, (f"{PLURAL}/finalizers",), ("update",)),
    Right("apps", ("deployments",), _CHILD_VERBS),
    Right("", ("configmaps",), _CHILD_VERBS),
    Right("", ("services",), _LASTING_CHILD_VERBS),
    Right("policy", ("poddisruptionbudgets",), _LASTING_CHILD_VERBS),
    Right("networking.k8s.io", ("networkpolicies",), _CHILD_VERBS),
    Right("", ("pods",), ("list", "patch", "watch")),
    Right("", ("events",), ("create", "list")),
    Right("monitoring.coreos.com", ("podmonitors",), ("create", "delete", "get", "patch"), optional=True),
    Right("coordination.k8s.io", ("leases",), ("get", "patch", "watch"), place="own", named=True),
)

# Where scope is Cluster the chart doesn't know the namespaces, so each service's router gets its account from the
# operator: a ServiceAccount and its binding to the ClusterRole ROUTER_SERVICE_ACCOUNT. `bind` lets the operator hand
# out that one role and none beyond its own rights.
CLUSTER_SCOPE_RIGHTS = (
    Right("", ("serviceaccounts",), _CHILD_VERBS),
    Right("rbac.authorization.k8s.io", ("rolebindings",), _CHILD_VERBS),
)
BIND_ROUTER_ROLE = Right("rbac.authorization.k8s.io", ("clusterroles",), ("bind",))

# Each router finds its replicas by watching their pods.
ROUTER_RIGHTS = (Right("", ("pods",), ("get", "list", "watch")),)
