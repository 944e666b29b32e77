"""A cluster as the end-to-end suite uses it: apply, read, delete, and wait for what the API server shows. It waits on
watches, never on a clock alone."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError

from pagefleet_contract.names import API_VERSION, KIND, LABEL_COMPONENT, LABEL_SERVICE

Object = dict[str, Any]
# A watch that shows nothing is opened anew, so that a wait also ends where the server drops one silently.
_WATCH_SECONDS = 10


class Cluster:
    """Any cluster that a kubeconfig leads to."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        configuration = client.Configuration()
        kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._api = client.ApiClient(configuration)
        self._dynamic: Any = DynamicClient(self._api)
        self._core = client.CoreV1Api(self._api)

    def apply(self, manifest: Mapping[str, Any]) -> Object:
        """Server-side apply, as `kubectl apply --server-side` does it; unknown fields are refused."""
        resource = self._resource(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        return _plain(
            self._dynamic.server_side_apply(
                resource,
                body=dict(manifest),
                name=metadata["name"],
                namespace=metadata.get("namespace"),
                field_manager="e2e",
                force_conflicts=True,
                query_params=[("fieldValidation", "Strict")],
            )
        )

    def create(self, manifest: Mapping[str, Any]) -> Object:
        resource = self._resource(manifest["apiVersion"], manifest["kind"])
        namespace = manifest["metadata"].get("namespace")
        return _plain(resource.create(body=dict(manifest), namespace=namespace))

    def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], version: str = "") -> Object:
        """JSON merge patch."""
        return _plain(
            self._of(kind, version).patch(
                body=dict(patch), name=name, namespace=namespace, content_type="application/merge-patch+json"
            )
        )

    def patch_status(
        self, kind: str, namespace: str, name: str, status: Mapping[str, Any], version: str = ""
    ) -> Object:
        """JSON merge patch of the status, as a kubelet or controller would write it."""
        return _plain(
            self._of(kind, version).status.patch(
                body={"status": dict(status)},
                name=name,
                namespace=namespace,
                content_type="application/merge-patch+json",
            )
        )

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Write the scale subresource, as `kubectl scale` and every autoscaler do."""
        custom = client.CustomObjectsApi(self._api)
        group, version = API_VERSION.split("/")
        custom.patch_namespaced_custom_object_scale(
            group, version, namespace, "inferenceservices", name, {"spec": {"replicas": replicas}}
        )

    def token(self, namespace: str, service_account: str) -> str:
        """Return a new token of a service account."""
        request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[]))
        made = self._core.create_namespaced_service_account_token(service_account, namespace, request)
        assert made.status is not None
        return str(made.status.token)

    def bind(self, namespace: str, pod: str, node: str) -> None:
        """Put a pod on a node, as the scheduler does."""
        self._of("Pod", "v1").binding.create(
            name=pod,
            namespace=namespace,
            body={"metadata": {"name": pod}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}},
        )

    def evict(self, namespace: str, pod: str) -> None:
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod, namespace=namespace))
        self._core.create_namespaced_pod_eviction(pod, namespace, body)

    def set_capacity(self, node: str, resource: str, count: int | None) -> None:
        """Give a node an extended resource, as a device plugin would; None takes it away."""
        value = None if count is None else str(count)
        self._of("Node", "v1").status.patch(
            name=node,
            body={"status": {"capacity": {resource: value}, "allocatable": {resource: value}}},
            content_type="application/merge-patch+json",
        )

    def delete(self, kind: str, namespace: str | None, name: str, version: str = "", **options: Any) -> None:
        """Ask for deletion; an object that isn't there is fine."""
        try:
            self._of(kind, version).delete(name=name, namespace=namespace, body={"kind": "DeleteOptions", **options})
        except NotFoundError:
            pass

    def get(self, kind: str, namespace: str | None, name: str, version: str = "") -> Object | None:
        try:
            return _plain(self._of(kind, version).get(name=name, namespace=namespace))
        except NotFoundError:
            return None

    def all(self, kind: str, namespace: str | None = None, selector: str = "", version: str = "") -> list[Object]:
        found = self._of(kind, version).get(namespace=namespace, label_selector=selector or None)
        return list(_plain(found).get("items", []))

    def pods(self, namespace: str, service: str, component: str = "engine") -> list[Object]:
        return self.all("Pod", namespace, f"{LABEL_SERVICE}={service},{LABEL_COMPONENT}={component}")

    def logs(self, namespace: str, pod: str, **options: Any) -> str:
        return str(self._core.read_namespaced_pod_log(pod, namespace, **options))

    def wait(
        self,
        what: str,
        kind: str,
        namespace: str | None,
        condition: Callable[[list[Object]], bool],
        seconds: float = 60,
        selector: str = "",
        version: str = "",
    ) -> list[Object]:
        """Return the objects as soon as `condition` holds for their list. Fails with what was there when time ran
        out."""
        deadline = time.monotonic() + seconds
        while True:
            resource = self._of(kind, version)
            listed = _plain(resource.get(namespace=namespace, label_selector=selector or None))
            found = {_key(item): item for item in listed.get("items", [])}
            if condition(list(found.values())):
                return list(found.values())
            for event in self._watch(resource, namespace, selector, listed["metadata"]["resourceVersion"], deadline):
                item = event["object"]
                if event["type"] == "DELETED":
                    found.pop(_key(item), None)
                else:
                    found[_key(item)] = item
                if condition(list(found.values())):
                    return list(found.values())
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds:g} s; there is {_brief(list(found.values()))}")

    def wait_for(
        self,
        what: str,
        kind: str,
        namespace: str | None,
        name: str,
        condition: Callable[[Object | None], bool],
        seconds: float = 60,
        version: str = "",
    ) -> Object:
        """Return one object as soon as `condition` holds for it (None while it isn't there)."""

        def only(objects: list[Object]) -> Object | None:
            return next((item for item in objects if item["metadata"]["name"] == name), None)

        found = self.wait(what, kind, namespace, lambda objects: condition(only(objects)), seconds, "", version)
        return only(found) or {}

    def _watch(
        self, resource: Any, namespace: str | None, selector: str, version: str, deadline: float
    ) -> Iterator[Object]:
        seconds = max(1, min(_WATCH_SECONDS, int(deadline - time.monotonic()) + 1))
        try:
            for event in self._dynamic.watch(
                resource,
                namespace=namespace,
                label_selector=selector or None,
                resource_version=version,
                timeout=seconds,
            ):
                yield {"type": event["type"], "object": event["raw_object"]}
        except ApiException as error:
            if error.status != 410:  # the list is read anew
                raise

    def _of(self, kind: str, version: str) -> Any:
        return self._resource(version or _VERSIONS.get(kind, "v1"), kind)

    def _resource(self, version: str, kind: str) -> Any:
        return self._dynamic.resources.get(api_version=version, kind=kind)


_VERSIONS = {
    KIND: API_VERSION,
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Lease": "coordination.k8s.io/v1",
}


def condition_of(service: Object | None, type_: str) -> Object:
    """Return one condition of a service, or an empty one."""
    conditions = ((service or {}).get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == type_), {})


def holds(service: Object | None, type_: str, status: str = "True", reason: str = "") -> bool:
    """Whether the condition of the service's present generation has that status (and reason)."""
    found = condition_of(service, type_)
    return (
        service is not None
        and found.get("status") == status
        and found.get("observedGeneration") == service["metadata"]["generation"]
        and (not reason or found.get("reason") == reason)
    )


def _plain(value: Any) -> Object:
    return dict(value.to_dict() if hasattr(value, "to_dict") else value)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _brief(objects: list[Object]) -> str:
    parts = []
    for item in objects:
        status = item.get("status") or {}
        conditions = "; ".join(
            f"{each['type']}={each['status']} {each.get('reason', '')} {each.get('message', '')}"
            for each in status.get("conditions", [])
        )
        parts.append(f"{item['metadata']['name']} [{status.get('phase', '')} {conditions}]")
    return ", ".join(parts) or "nothing"
