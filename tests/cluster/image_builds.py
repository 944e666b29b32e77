"""The images of the test bed, built as anybody would build them, kept as archives under the hash of all that went in.

The base comes from the distribution by debootstrap, because nothing here may need a container registry. buildah keeps
its layers in the cache folder too, so that an edit of the source costs seconds.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_local.locks import locked
from tests.cluster.machine import BedFault
from tests.cluster.pip_settings import find_pip_settings

ROOT = Path(__file__).resolve().parents[2]
SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
BASE = f"localhost/pagefleet-base:{SUITE}"
_PACKAGES = "python3,python3-venv,ca-certificates"
# gzip would take twice as long to write and to read.
_QUICK = ("--compression-format=zstd", "--compression-level=1")


@dataclass(frozen=True, slots=True)
class Image:
    """An image that one of our Dockerfiles describes. `name` is what pods ask for."""

    name: str
    dockerfile: Path
    arguments: Mapping[str, str] = field(default_factory=dict)


LIGHT = Image("localhost/pagefleet:bed", Path("operator/Dockerfile"))
ENGINE = Image("localhost/pagefleet-runtime:bed", Path("runtime/Dockerfile"))
IMAGES = {"light": LIGHT, "engine": ENGINE}


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds into one folder. `report` is told what takes a while."""

    folder: Path
    report: Callable[[str], None]

    def archive(self, image: Image) -> Path:
        """Return the image as an OCI archive, built unless one of the same content is there."""
        archive = self._archive_path(image.name, _content(image))
        with locked(self.folder / "lock"):
            if not archive.exists():
                self._need_base()
                self.report(f"building {image.name} from {image.dockerfile}")
                with tempfile.TemporaryDirectory() as folder:
                    mounts = find_pip_settings(sys.executable, os.environ).mounts(Path(folder))
                    self._buildah("build", *_build_arguments(image, mounts), str(ROOT))
                self._keep(image.name, archive)
        return archive

    def program_image(self, name: str, program: Path) -> Path:
        """Return an archive of an image that holds one static program and runs it."""
        archive = self._archive_path(name, hashlib.sha256(program.read_bytes()).hexdigest())
        with locked(self.folder / "lock"):
            if not archive.exists():
                self._commit(name, program, f"/{program.name}", "--entrypoint", f'["/{program.name}"]')
                self._keep(name, archive)
        return archive

    def _need_base(self) -> None:
        if self._buildah("images", "--quiet", "--filter", f"reference={BASE}").strip():
            return
        self.report(f"making the base image: Debian {SUITE} by debootstrap")
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            root, packed = Path(folder) / "root", Path(folder) / "root.tar"
            _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(root), MIRROR])
            shutil.rmtree(root / "var/cache/apt/archives")
            _run(["tar", "-C", str(root), "-cf", str(packed), "."])
            self._commit(BASE, packed, "/")

    def _commit(self, name: str, content: Path, target: str, *settings: str) -> None:
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", container, str(content), target)
        if settings:
            self._buildah("config", *settings, container)
        self._buildah("commit", "--rm", container, name)

    def _keep(self, name: str, archive: Path) -> None:
        """Write the archive, and drop what it replaces: older archives and layers that no image uses."""
        unfinished = archive.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        self._buildah("push", "--quiet", *_QUICK, name, f"oci-archive:{unfinished}:{name}")
        for old in self.folder.glob(f"{archive.name.rpartition('-')[0]}-*.tar"):
            old.unlink()
        unfinished.rename(archive)
        # A build that was broken off leaves a container, which would hold its image.
        self._buildah("rm", "--all")
        self._buildah("rmi", "--prune")

    def _archive_path(self, name: str, digest: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name.rpartition('/')[2].replace(':', '-')}-{digest[:12]}.tar"

    def _buildah(self, *arguments: str) -> str:
        places = ("--root", str(self.folder / "store"), "--runroot", str(self.folder / "run"))
        return _run(["buildah", "--storage-driver", "overlay", *places, *arguments])


def _build_arguments(image: Image, mounts: Sequence[str]) -> list[str]:
    arguments = {"BASE": BASE, **image.arguments}
    return [
        "--isolation=chroot",
        "--pull-never",
        "--layers",
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *(f"--volume={mount}:ro" for mount in mounts),
        f"--file={ROOT / image.dockerfile}",
        f"--tag={image.name}",
    ]


def _content(image: Image) -> str:
    """Return the hash of all that goes into the image, the base's recipe included."""
    digest = hashlib.sha256(repr((SUITE, MIRROR, _PACKAGES, sorted(image.arguments.items()))).encode())
    for file in (ROOT / image.dockerfile, *context_files()):
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_mode:o}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def context_files() -> list[Path]:
    """Return the files that .dockerignore lets into a build."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    files: list[Path] = []
    for top in (ROOT / line[1:] for line in lines if line.startswith("!")):
        files += [top] if top.is_file() else [path for path in sorted(top.rglob("*")) if path.is_file()]
    return [file for file in files if "__pycache__" not in file.parts and file.name != "Dockerfile"]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise BedFault(f"`{' '.join(command[:8])} …` ended with {done.returncode}:\n{said}")
    return done.stdout
