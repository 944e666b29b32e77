"""Which pods this node can't run, and why, in words. It isolates nothing, so what asks for the machine is refused."""

from collections.abc import Iterator

from pagefleet_contract.names import MOUNT_ROOT, MOUNT_SHARED_MEMORY
from pagefleet_local.node.pods import TOKEN_MOUNT, Manifest, all_containers, volumes
from pagefleet_local.node.rewriting import under_mount_root
from pagefleet_local.node.volumes import KNOWN_VOLUMES

REASON = "NotRunnableOnProcessNode"
_NO_HOST = "this node runs pods as plain processes and keeps them apart from the machine by refusing"


def refusal(pod: Manifest) -> str | None:
    """Return why the pod can't run here, every reason in one sentence each; None where it can."""
    reasons = [*_pod_reasons(pod)]
    for container in all_containers(pod):
        reasons += [f"container {container['name']}: {reason}" for reason in _container_reasons(container)]
    return "; ".join(reasons) or None


def _pod_reasons(pod: Manifest) -> Iterator[str]:
    spec = pod["spec"]
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"spec.{field} is true; {_NO_HOST} it"
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        yield f"spec.os.name is {spec['os']['name']}; this node runs linux"
    if spec.get("runtimeClassName"):
        yield f"spec.runtimeClassName is {spec['runtimeClassName']}; this node has one runtime, plain processes"
    if spec.get("hostAliases"):
        yield "spec.hostAliases is set; all pods of this node share the machine's hosts file"
    for volume in volumes(pod):
        kinds = [kind for kind in volume if kind != "name"] or ["emptyDir"]
        if kinds[0] not in KNOWN_VOLUMES:
            yield f"volume {volume['name']} is a {kinds[0]}; this node has {', '.join(KNOWN_VOLUMES)}"


def _container_reasons(container: Manifest) -> Iterator[str]:
    security = container.get("securityContext") or {}
    if security.get("privileged"):
        yield f"securityContext.privileged is true; {_NO_HOST} it"
    if (security.get("capabilities") or {}).get("add"):
        yield f"securityContext.capabilities.add is {security['capabilities']['add']}; plain processes get none"
    if container.get("volumeDevices"):
        yield "volumeDevices is set; this node has folders only"
    for mount in container.get("volumeMounts") or ():
        path = mount["mountPath"].rstrip("/")
        # Processes find the machine's own shared memory there.
        if not under_mount_root(path) and path not in (TOKEN_MOUNT, MOUNT_SHARED_MEMORY):
            yield f"mountPath {path} lies outside {MOUNT_ROOT}, and nothing is mounted here; use {MOUNT_ROOT}{path}"
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"hostPort {port['hostPort']} is set; use a Service"
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "grpc" in (container.get(kind) or {}):
            yield f"{kind}.grpc is not known here; use httpGet, tcpSocket or exec"
