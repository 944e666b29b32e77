"""The restricted Pod Security profile, as the Kubernetes page states it, for what our pods can say."""

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(pod: dict[str, Any]) -> list[str]:
    """Return what the profile would refuse in a pod's spec."""
    return [*_of_pod(pod), *(fault for container in pod["containers"] for fault in _of_container(container, pod))]


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", []):
        if set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume}"


def _of_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    security, around = container.get("securityContext", {}), pod.get("securityContext", {})
    if security.get("privileged"):
        yield "privileged"
    if security.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if "ALL" not in security.get("capabilities", {}).get("drop", []) or security["capabilities"].get("add"):
        yield "capabilities"
    if not (security.get("runAsNonRoot") or around.get("runAsNonRoot")):
        yield "runAsNonRoot"
    if 0 in (security.get("runAsUser"), around.get("runAsUser")):
        yield "runAsUser"
    profile = security.get("seccompProfile") or around.get("seccompProfile") or {}
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "hostPort"
