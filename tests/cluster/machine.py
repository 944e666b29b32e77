"""What the test bed asks of the machine, and what it takes of it for as long as it runs."""

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from pagefleet_local.waiting import wait_for

# Each program with the Debian package that brings it.
NEEDED = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
}
# The kubelet sets these, which belong to the whole machine and to no namespace: it gets files to write to instead.
SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
OWN_NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--propagation", "slave")
_GROUPS = Path("/sys/fs/cgroup")


class BedFault(Exception):
    """The bed can't be had: one sentence with what was found and what to do."""


def why_no_node() -> str | None:
    """Return why this machine can't have a real node at all, as a sentence, or None."""
    if platform.system() != "Linux":
        return f"this machine runs {platform.system()}; a real node needs Linux"
    if os.geteuid() != 0:
        return "this machine's user isn't root; a real node needs namespaces, mounts and control groups"
    if shutil.which("unshare"):
        probe = subprocess.run([*OWN_NAMESPACES, "true"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            return f"this machine lets root make no namespaces ({probe.stderr.strip()})"
    return None


def check_programs() -> None:
    """Raise BedFault if a program of the system is missing that could be installed."""
    missing = {package for program, package in NEEDED.items() if not shutil.which(program)}
    if missing:
        raise BedFault(f"there is no {', '.join(sorted(missing))}; apt-get install {' '.join(sorted(missing))}")


@contextlib.contextmanager
def control_group(name: str) -> Iterator[str]:
    """A control group of that name in every hierarchy, gone at the end with all that the kubelet made below it."""
    folders = [root / name for root in _hierarchies()]
    for folder in folders:
        folder.mkdir()
    try:
        yield f"/{name}"
    finally:
        # The last processes below may still be on their way out.
        if not wait_for(lambda: all(_removed(folder) for folder in folders), 10):
            left = [str(folder) for folder in folders if folder.exists()]
            raise BedFault(f"control groups are left with processes in them: {', '.join(left)}")


def _hierarchies() -> Sequence[Path]:
    """Return where control groups are mounted: one place for version 2, one for each controller of version 1."""
    if (_GROUPS / "cgroup.controllers").exists():
        return [_GROUPS]
    return [folder for folder in _GROUPS.iterdir() if folder.is_dir() and not folder.is_symlink() and folder.is_mount()]


def _removed(folder: Path) -> bool:
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()
    return not folder.exists()
