"""A pod's folder on this machine: its record, volumes, logs. Volumes change all their files in one step."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pagefleet_local.node.records import PodRecord, from_json, to_json
from pagefleet_local.node.volumes import File

_DATA = "..data"


@dataclass(frozen=True)
class PodFolder:
    path: Path

    @property
    def volumes(self) -> Path:
        return self.path / "volumes"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    def container(self, name: str) -> Path:
        return self.path / "containers" / name

    def log(self, container: str, start: int) -> Path:
        return self.container(container) / f"{start}.log"

    def forget_logs(self, container: str, before: int) -> None:
        """Remove the logs of older starts; the last two are kept, as `kubectl logs --previous` shows one."""
        for path in self.container(container).glob("*.log"):
            if int(path.stem) < before:
                path.unlink()
                path.with_suffix(".times").unlink(missing_ok=True)

    def make(self, container: str) -> None:
        """Give the container's next start folders of its own that are empty, and no message of the last one."""
        for name in ("home", "tmp"):
            shutil.rmtree(self.container(container) / name, ignore_errors=True)
            (self.container(container) / name).mkdir(parents=True)
        self.termination_log(container).unlink(missing_ok=True)

    def termination_log(self, container: str) -> Path:
        return self.container(container) / "termination-log"

    def save(self, record: PodRecord) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.path / "record.new"
        new.write_text(json.dumps(to_json(record)))
        new.replace(self.path / "record.json")

    def load(self) -> PodRecord | None:
        try:
            return from_json(json.loads((self.path / "record.json").read_text()))
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Remove the folder; what a volume's link leads to stays."""
        shutil.rmtree(self.path, ignore_errors=True)


def pod_folder(state: Path, namespace: str, name: str, uid: str) -> PodFolder:
    return PodFolder(state / "pods" / f"{namespace}_{name}_{uid}")


def pod_folders(state: Path) -> Iterator[PodFolder]:
    if (state / "pods").is_dir():
        for path in sorted((state / "pods").iterdir()):
            yield PodFolder(path)


def write_files(folder: Path, files: Mapping[str, File]) -> bool:
    """Make the folder hold exactly these files, all at once, as the kubelet does: each is a link through `..data`,
    which is turned to a new folder in one step. Return whether anything changed."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / _DATA
    old = folder / os.readlink(data) if data.is_symlink() else None
    if old and _read_files(old) == files:
        return False
    new = folder / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S.%f}"
    new.mkdir()
    for name, file in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(file.data)
        path.chmod(file.mode & 0o7777)
    _turn(data, new.name)
    wanted = {PurePosixPath(name).parts[0] for name in files}
    for name in wanted:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{name}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()
    if old:
        shutil.rmtree(old)
    return True


def link_folder(link: Path, target: Path) -> None:
    """Make the volume lead to a folder of the machine."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or os.readlink(link) != str(target):
        _turn(link, str(target))


def _turn(link: Path, target: str) -> None:
    new = link.with_name(f"..new-{link.name}")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)


def _read_files(folder: Path) -> dict[str, File]:
    return {
        str(path.relative_to(folder)): File(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in folder.rglob("*")
        if path.is_file()
    }
