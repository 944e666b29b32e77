"""The folder where downloaded, joined and converted models are kept, and how something gets into it whole."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pagefleet_contract.names import ENV_CACHE


def cache_directory(environment: dict[str, str] | os._Environ[str] = os.environ) -> Path:
    """Return the cache folder: what the environment says, or the user's own."""
    if environment.get(ENV_CACHE):
        return Path(environment[ENV_CACHE])
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "/tmp")) / ".cache")
    return Path(base) / "pagefleet"


def make_once(target: Path, make: Callable[[Path], None], *, resumes: bool = False) -> Path:
    """Return `target`, a folder that `make` fills if it isn't there yet.

    Processes that want the same folder wait for one another. It appears whole or not at all: `make` fills a folder
    beside it, which is then renamed. What an earlier, killed attempt left there is removed first, unless `make`
    `resumes` it.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(target.name + ".lock")):
        if target.is_dir():
            return target
        partial = target.with_name(target.name + ".partial")
        if not resumes:
            shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(exist_ok=resumes)
        make(partial)
        _make_readable(partial)
        partial.rename(target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_readable(directory: Path) -> None:
    """Some writers make files that only their owner may read; other users' servers share this cache."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
