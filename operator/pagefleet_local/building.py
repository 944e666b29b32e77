"""Building programs from a Go module of ours into the cache folder, once, with what is going on said as it goes."""

import hashlib
import os
import platform
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_contract.names import ENV_CACHE
from pagefleet_local.errors import FleetError
from pagefleet_local.locks import locked
from pagefleet_local.toolchain import Go, find_go

_SAID_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """Programs of one Go module: the folder with its go.mod and go.sum, and each program's package by file name."""

    module: Path
    packages: Mapping[str, str]
    linker_flags: str = "-s -w"
    needed_bytes: int = 0  # free on the disk, for sources, intermediate results and the programs


def build(cache: Path, recipe: Recipe, report: Callable[[str], None]) -> Path:
    """Return the folder that holds the recipe's programs; those that it lacks are built.

    The folder's name says from what they were built, so that another version never stands in for this one. Two
    commands that build at once wait for each other.
    """
    folder = cache / "programs" / f"{recipe.module.name}-{_stamp(recipe)}"
    with locked(folder.with_suffix(".lock"), report):
        missing = {name: package for name, package in recipe.packages.items() if not (folder / name).exists()}
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
            _check_space(cache, recipe)
            _compile(find_go(cache, report), cache, folder, recipe, missing, report)
    return folder


def _stamp(recipe: Recipe) -> str:
    digest = hashlib.sha256()
    own = sorted(recipe.module.rglob("*.go"))
    for file in (recipe.module / "go.mod", recipe.module / "go.sum", *own):
        digest.update(file.read_bytes())
    digest.update(f"{recipe.linker_flags} {platform.machine()}".encode())
    return digest.hexdigest()[:12]


def _check_space(cache: Path, recipe: Recipe) -> None:
    free = shutil.disk_usage(cache).free
    if free < recipe.needed_bytes:
        raise FleetError(
            f"building {', '.join(recipe.packages)} needs {recipe.needed_bytes >> 30} GB and {cache} has"
            f" {free / 2**30:.1f}; free some, name another folder with {ENV_CACHE}, or a folder that holds the programs"
            " with --binaries"
        )


def _compile(
    go: Go, cache: Path, folder: Path, recipe: Recipe, packages: Mapping[str, str], report: Callable[[str], None]
) -> None:
    work, fresh = cache / "go-work", folder / ".new"
    shutil.rmtree(fresh, ignore_errors=True)  # of a build that was killed
    fresh.mkdir()
    try:
        runs = _Runs(go.command, recipe.module, _environment(go, work), Progress(", ".join(packages), report))
        flags = ["-trimpath", "-ldflags", recipe.linker_flags]
        stale = "{{if .Stale}}{{.ImportPath}}{{end}}"
        runs.progress.num_packages = len(runs.run("list", "-deps", "-f", stale, *flags, *packages.values()).split())
        runs.run("build", "-v", *flags, "-o", f"{fresh}/", *packages.values())
        for name, package in packages.items():
            (fresh / _built_name(package)).replace(folder / name)
    finally:
        shutil.rmtree(fresh)
    if not go.is_users:  # gigabytes that nobody asked for; kept until now so that a build that was broken off goes on
        shutil.rmtree(work, ignore_errors=True)


def _built_name(package: str) -> str:
    """Return the name that Go gives the program: the package's last part that isn't a major version."""
    *_, before, last = package.split("/")
    return before if re.fullmatch(r"v\d+", last) else last


def _environment(go: Go, work: Path) -> dict[str, str]:
    """Return the user's environment (proxies, certificates) without what would change what is built."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH", "GOEXPERIMENT")}
    own = {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -modcacherw"}
    if go.is_users:
        return kept | own
    return kept | own | {"GOPATH": str(work / "path"), "GOCACHE": str(work / "build"), "GOENV": "off"}


class Progress:
    """What a build says while it goes on: how many packages of `num_packages` are compiled, and for how long it has
    been at it. Their number is known when all sources are there; until then it says how many modules have come."""

    def __init__(self, what: str, report: Callable[[str], None]) -> None:
        self._what, self._report = what, report
        self._began = self._said = time.monotonic()
        self._num_downloads = self._num_compiled = 0
        self.num_packages = 0

    def line(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self._num_downloads += 1
        elif line:
            self._num_compiled += 1

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._said >= _SAID_EVERY_SECONDS:
            self._said = now
            self._report(f"building {self._what} (once, some minutes): {self._done()}, {now - self._began:.0f} s")

    def _done(self) -> str:
        if not self.num_packages:
            return f"{self._num_downloads} modules fetched"
        if self._num_compiled >= self.num_packages:
            return f"all {self.num_packages} packages compiled, linking"
        return f"{self._num_compiled} of {self.num_packages} packages compiled"


@dataclass(frozen=True, slots=True)
class _Runs:
    """Go at work on one module."""

    go: Path
    folder: Path
    environment: Mapping[str, str]
    progress: Progress

    def run(self, *arguments: str) -> str:
        """Return what it prints; what it says beside that is progress. Raises FleetError with its reason."""
        said: deque[str] = deque(maxlen=20)
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(
                [self.go, *arguments], cwd=self.folder, env=self.environment, stdout=printed, stderr=subprocess.PIPE
            )
            try:
                with process:
                    self._follow(process, said)
            except BaseException:
                process.kill()
                raise
            printed.seek(0)
            text = printed.read().decode(errors="replace")
        if process.returncode != 0:
            what = f"`go {arguments[0]}` failed: {_reason(said)}"
            raise FleetError(f"{what}; run it by hand in {self.folder} to see all it says")
        return text

    def _follow(self, process: "subprocess.Popen[bytes]", said: "deque[str]") -> None:
        assert process.stderr is not None
        pending = b""
        while True:
            if not select.select([process.stderr], [], [], _SAID_EVERY_SECONDS)[0]:
                self.progress.tick()
                continue
            if not (piece := os.read(process.stderr.fileno(), 65536)):
                return
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                said.append(line.decode(errors="replace"))
                self.progress.line(said[-1])
            self.progress.tick()


def _reason(said: Sequence[str]) -> str:
    """Return the line that says what went wrong, past the names of packages that are only progress."""
    telling = [line for line in said if ":" in line and not line.startswith(("go: downloading", "# "))]
    return (telling or list(said) or ["it said nothing"])[-1]
