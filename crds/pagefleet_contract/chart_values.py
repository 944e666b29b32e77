"""The values of the Helm chart: `values.yaml`, its schema and the chart's fallbacks are rendered from here."""

from typing import Annotated

from pydantic import Field

from pagefleet_contract.engine import Section
from pagefleet_contract.pod_template import EnvVar, LabelText, OpenObject
from pagefleet_contract.schema_markers import ListMap
from pagefleet_contract.settings import OperatorSettings

# Empty where nothing is named.
_OptionalName = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
_OptionalLabel = Annotated[str, Field(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")]
_Annotation = Annotated[str, Field(max_length=16_384)]
_Annotations = dict[str, _Annotation]
_Labels = dict[str, LabelText]


class Crds(Section):
    """The definition of InferenceService."""

    install: bool = True
    """Whether this release installs the definition; false for every further release in the cluster."""

    keep: bool = True
    """Whether the definition, and with it every service, outlives the release."""


class RootKey(Section):
    """The key from which each service's operator key is derived."""

    secret_name: _OptionalName = ""
    """Name of an existing Secret in the release's namespace with the entry `key`, 32 random characters or more; if
    empty, one is made at the first install and kept. Name one where manifests are rendered outside the cluster, as
    Argo CD does: each rendering would make another."""


class Rbac(Section):
    """Roles and service accounts."""

    create: bool = True
    """Whether the roles of operator and routers are made, and the routers' service account; false where an
    administrator does that."""

    aggregate: bool = True
    """Whether the cluster's own roles view, edit and admin learn about InferenceService; only where this release
    installs the definition."""


class ServiceAccount(Section):
    """The operator's service account."""

    create: bool = True
    """Whether it is made."""

    name: _OptionalName = ""
    """Its name; the release's if empty."""

    annotations: _Annotations = Field(default={}, max_length=32)
    """Its annotations."""


class PodMonitorValues(Section):
    """The operator's PodMonitor, for clusters with the Prometheus operator."""

    enabled: bool = False
    """Whether it is made."""

    labels: _Labels = Field(default={}, max_length=32)
    """Further labels, by which a Prometheus selects it."""

    interval_seconds: int = Field(default=30, ge=1, le=3600)
    """How often the operator is scraped, in seconds."""


class Metrics(Section):
    """The operator's own figures, on port 8080."""

    service: bool = True
    """Whether a Service stands before /metrics."""

    pod_monitor: PodMonitorValues = PodMonitorValues()


class NetworkPolicyValues(Section):
    """The NetworkPolicy of the operator's pods."""

    enabled: bool = False
    """Whether it is made: nothing but port 8080 is reachable then."""


class HelmTest(Section):
    """What `helm test` sends a completion to."""

    service: _OptionalLabel = ""
    """Name of an InferenceService; if empty, the test only says how to name one."""

    namespace: _OptionalLabel = ""
    """Its namespace; the release's if empty."""

    api_key_secret: _OptionalName = ""
    """Secret in the release's namespace with an API key of the service; none is sent if empty."""

    api_key_entry: str = Field(default="test", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Entry of that Secret."""


class ChartValues(Section):
    """Everything that `helm install --set` can set."""

    replicas: int = Field(default=1, ge=0, le=5)
    """Pods of the operator. One works at a time, the holder of the Lease; others take over when it is gone."""

    crds: Crds = Crds()

    settings: OperatorSettings = OperatorSettings()

    root_key: RootKey = RootKey()

    rbac: Rbac = Rbac()

    service_account: ServiceAccount = ServiceAccount()

    metrics: Metrics = Metrics()

    network_policy: NetworkPolicyValues = NetworkPolicyValues()

    test: HelmTest = HelmTest()

    name_override: str = Field(default="", max_length=40, pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$")
    """Name of what the chart makes, in place of the release's."""

    common_labels: _Labels = Field(default={}, max_length=32)
    """Labels of everything that the chart makes."""

    pod_labels: _Labels = Field(default={}, max_length=32)
    """Further labels of the operator's pods."""

    pod_annotations: _Annotations = Field(default={}, max_length=32)
    """Annotations of the operator's pods."""

    resources: OpenObject = Field(default={"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}})
    """What an operator pod asks for and may take at most, as in a container."""

    node_selector: _Labels = Field(default={}, max_length=32)
    """Labels that a node must have to run the operator."""

    tolerations: list[OpenObject] = Field(default=[], max_length=32)
    """Taints that the operator's pods bear, as in a pod."""

    affinity: OpenObject = Field(default={})
    """Node and pod affinity of the operator's pods, as in a pod."""

    topology_spread_constraints: list[OpenObject] = Field(default=[], max_length=8)
    """How the operator's pods spread, as in a pod."""

    priority_class_name: _OptionalName = ""
    """PriorityClass of the operator's pods."""

    runtime_class_name: _OptionalName = ""
    """RuntimeClass of the operator's pods."""

    extra_env: Annotated[list[EnvVar], ListMap(("name",))] = Field(default=[], max_length=64)
    """Further environment variables of the operator, such as HTTPS_PROXY or HF_TOKEN."""

    extra_objects: list[OpenObject] = Field(default=[], max_length=32)
    """Further objects of the release, whole manifests; texts in them are templates."""
