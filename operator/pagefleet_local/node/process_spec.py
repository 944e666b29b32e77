"""What to start for a container: the whole command, environment and folder of a process, from its pod's manifest."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pagefleet_contract.names import ENV_LISTEN_ADDRESS, ENV_MEMORY_LIMIT
from pagefleet_local.node.environment import ConfigError, Place, Sources, declared_environment, expand
from pagefleet_local.node.pods import TOKEN_MOUNT, Manifest
from pagefleet_local.node.quantities import quantity
from pagefleet_local.node.rewriting import AddressOf, under_mount_root, with_addresses, with_folders

# What both images set for every program in them.
IMAGE_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "LANG": "C.UTF-8"}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV_KUBECONFIG = "KUBECONFIG"
ENV_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class ProcessSpec:
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


@dataclass(frozen=True)
class Grounds:
    """What this machine gives to a container: folders, the environment's programs, devices, Services' addresses."""

    place: Place
    programs: Path
    home: Path
    temporary: Path
    volumes: Path
    kubeconfig: Path
    termination_log: Path
    devices: tuple[str, ...]
    address_of: AddressOf


def mount_folders(container: Manifest, grounds: Grounds, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the folder that stands for each mount path of the container, those under the mount root only."""
    folders: dict[str, str] = {}
    for mount in container.get("volumeMounts") or ():
        if not under_mount_root(mount["mountPath"]):
            continue
        within = mount.get("subPath") or expand(mount.get("subPathExpr") or "", environment)
        if ".." in PurePosixPath(within).parts or within.startswith("/"):
            raise ConfigError(f"subPath {within!r} leaves the volume {mount['name']}; it must stay within it")
        folders[mount["mountPath"].rstrip("/")] = str(grounds.volumes / mount["name"] / within)
    message_path = container.get("terminationMessagePath") or ""
    if under_mount_root(message_path):
        folders.setdefault(message_path, str(grounds.termination_log))
    return folders


def has_token(container: Manifest) -> bool:
    return any(mount["mountPath"].rstrip("/") == TOKEN_MOUNT for mount in container.get("volumeMounts") or ())


def process_spec(container: Manifest, pod: Manifest, grounds: Grounds, sources: Sources) -> ProcessSpec:
    """Return the process that stands for the container. Raises ConfigError where the manifest can't be followed."""
    if not container.get("command"):
        raise ConfigError(
            f"container {container['name']} has no command, and this node doesn't know its image's; "
            "write spec.containers[].command"
        )
    own = {
        "PATH": f"{grounds.programs}:{SYSTEM_PATH}",
        "HOME": str(grounds.home),
        "TMPDIR": str(grounds.temporary),
        "HOSTNAME": str(pod["metadata"]["name"]),
        **IMAGE_ENVIRONMENT,
    }
    fixed = {
        ENV_LISTEN_ADDRESS: grounds.place.address,
        ENV_KUBECONFIG: str(grounds.kubeconfig) if has_token(container) else "",
        ENV_DEVICES: ",".join(grounds.devices),
        ENV_MEMORY_LIMIT: _memory_limit(container),
    }
    declared = declared_environment(container, pod, grounds.place, sources, fixed)
    folders = mount_folders(container, grounds, declared)

    def here(text: str) -> str:
        return with_addresses(with_folders(text, folders), grounds.address_of)

    words = [*container["command"], *(container.get("args") or ())]
    return ProcessSpec(
        argv=tuple(here(expand(word, declared)) for word in words),
        environment=own | {name: here(value) for name, value in declared.items()},
        folder=here(container.get("workingDir") or "") or str(grounds.home),
    )


def _memory_limit(container: Manifest) -> str:
    """Return the container's limit in bytes, empty where it has none."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return str(int(quantity(limit))) if limit else ""


def hook_spec(command: list[str], process: ProcessSpec, container: Manifest, grounds: Grounds) -> ProcessSpec:
    """Return the process of a probe or hook that runs in the container: no `$(NAME)` there, as on every node."""
    folders = mount_folders(container, grounds, process.environment)
    argv = tuple(with_addresses(with_folders(word, folders), grounds.address_of) for word in command)
    return ProcessSpec(argv, process.environment, process.folder)
