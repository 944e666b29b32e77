"""How a service is reached, guarded, evicted and scraped: Service, NetworkPolicy, PodDisruptionBudget, PodMonitor."""

from pagefleet_contract.names import (
    COMPONENT_ENGINE,
    COMPONENT_OPERATOR,
    COMPONENT_ROUTER,
    HTTP_PORT,
    HTTP_PORT_NAME,
    LABEL_COMPONENT,
    LABEL_NAME,
    LABEL_SERVICE,
    NAME_VALUE,
    PATH_METRICS,
    service_selector,
)
from pagefleet_operator.manifests.metadata import Manifest, Owner, child

# Label of metrics collectors, as their charts set it.
_COLLECTOR = "prometheus"


def front_door(owner: Owner, component: str) -> Manifest:
    """Return the Service under the resource's own name, before the pods of a component."""
    return {
        **child(owner, "v1", "Service", owner.name),
        "spec": {
            "type": "ClusterIP",
            "selector": service_selector(owner.name, component),
            "ports": [
                {"name": HTTP_PORT_NAME, "port": HTTP_PORT, "targetPort": HTTP_PORT_NAME, "protocol": "TCP"},
            ],
        },
    }


def disruption_budget(owner: Owner) -> Manifest:
    return {
        **child(owner, "policy/v1", "PodDisruptionBudget", owner.child("engine"), COMPONENT_ENGINE),
        "spec": {
            # With minAvailable a single replica could never be evicted.
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": service_selector(owner.name, COMPONENT_ENGINE)},
        },
    }


def network_policy(owner: Owner) -> Manifest:
    """Return the policy that lets the service's router, the operator and metrics collectors reach the engines."""
    operator = {LABEL_NAME: NAME_VALUE, LABEL_COMPONENT: COMPONENT_OPERATOR}
    return {
        **child(owner, "networking.k8s.io/v1", "NetworkPolicy", owner.child("engine"), COMPONENT_ENGINE),
        "spec": {
            "podSelector": {"matchLabels": service_selector(owner.name, COMPONENT_ENGINE)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [
                        {"podSelector": {"matchLabels": service_selector(owner.name, COMPONENT_ROUTER)}},
                        {"namespaceSelector": {}, "podSelector": {"matchLabels": operator}},
                        {"namespaceSelector": {}, "podSelector": {"matchLabels": {LABEL_NAME: _COLLECTOR}}},
                    ],
                    "ports": [{"port": HTTP_PORT_NAME, "protocol": "TCP"}],
                }
            ],
        },
    }


def pod_monitor(owner: Owner) -> Manifest:
    return {
        **child(owner, "monitoring.coreos.com/v1", "PodMonitor", owner.name),
        "spec": {
            "selector": {"matchLabels": {LABEL_SERVICE: owner.name}},
            "podMetricsEndpoints": [{"port": HTTP_PORT_NAME, "path": PATH_METRICS}],
        },
    }
