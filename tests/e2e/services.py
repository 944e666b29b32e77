"""Builders of the resources that the end-to-end suite applies; a test names only what it is about."""

from typing import Any

from pagefleet_contract.names import API_VERSION, KIND


def service(namespace: str, name: str = "chat", replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """A simulated model on CPU pods that come up at once and answer in milliseconds a token."""
    base: dict[str, Any] = {
        "replicas": replicas,
        "model": {"uri": "simulated://smollm2-135m"},
        "accelerator": {"resource": "cpu", "count": 1, "memory": "512Mi"},
        "kvCache": {"budget": {"blocks": 512}},
        "rollout": {"drainTimeoutSeconds": 60},
        "podTemplate": {"resources": {"requests": {"cpu": "10m"}}},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": _merged(base, spec),
    }


def with_spec(manifest: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The manifest with these parts of its spec laid over."""
    return manifest | {"spec": _merged(manifest["spec"], spec)}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
