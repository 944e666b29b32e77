"""Compile the C++ sources once per source, flags and target, keep the result in a folder, load it with ctypes.

No compiler, no matching CPU or a failed compilation is an answer, not an exception: the caller falls back and says so.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from pagefleet_kernels.cpu.targets import X86_TARGETS, Target, choose_target, this_machine

_SOURCES = Path(__file__).parent
# What an image's build has compiled for every target: an image has no compiler, and no folder that it may write to.
INSTALLED = _SOURCES / "compiled"
# No errno and no traps, so that loops become vectors; NaN and infinities keep their meaning (no -ffast-math).
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
)
_COMPILE_SECONDS = 300
_ADDRESS, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


@dataclass(frozen=True, slots=True)
class CpuLibrary:
    """The loaded library. `target` says what it was compiled for."""

    functions: ctypes.CDLL
    target: str
    path: Path


@dataclass(frozen=True, slots=True)
class CpuUnavailable:
    """Why there is no library, as a sentence for the log."""

    reason: str


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pagefleet" / "kernels"


def load_library(cache: Path | None = None, target: Target | None = None) -> CpuLibrary | CpuUnavailable:
    """Return the library for this CPU: the installed one, else the one in `cache` (None: the user's cache
    folder), compiled if it isn't there.

    `target` forces a compilation other than the best one that the CPU can run.
    """
    machine, cpu_flags = this_machine()
    chosen = target or choose_target(machine, cpu_flags)
    if chosen is None or not chosen.needs <= cpu_flags:
        missing = sorted((chosen or X86_TARGETS[-1]).needs - cpu_flags)
        return CpuUnavailable(f"the CPU lacks {', '.join(missing)}, which {(chosen or X86_TARGETS[-1]).name} needs")
    path = INSTALLED / library_name(chosen)
    if not path.exists():
        path = (cache or default_cache()) / library_name(chosen)
    if not path.exists():
        failure = compile_library(chosen, path)
        if failure is not None:
            return CpuUnavailable(failure)
    try:
        return CpuLibrary(_load(path), chosen.name, path)
    except OSError as error:
        return CpuUnavailable(f"{path} can't be loaded: {error}")


def library_name(target: Target) -> str:
    digest = hashlib.sha256(" ".join((*_FLAGS, *target.flags)).encode())
    for source in sorted(_SOURCES.glob("*.[ch]*")):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"libpagefleet-{target.name}-{digest.hexdigest()[:16]}.so"


def compile_library(target: Target, path: Path) -> str | None:
    """Compile to `path`; return why it failed, or None. A half-written library is never seen under its name."""
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None:
        return "there is no C++ compiler (g++) to compile the CPU kernels with"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compile-") as folder:
            _compile_all([compiler, *_FLAGS, *target.flags], Path(folder) / path.name)
            (Path(folder) / path.name).rename(path)
    except subprocess.CalledProcessError as error:
        return f"{compiler} failed on the CPU kernels: {error.stderr.strip()[-2000:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the CPU kernels couldn't be compiled into {path.parent}: {error}"
    return None


def _compile_all(command: list[str], made: Path) -> None:
    """Compile the sources at the same time, as cores allow, and link them beside."""
    sources = sorted(_SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)
    objects = [made.with_name(f"{source.stem}.o") for source in sources]

    def compile_one(source: Path, to: Path) -> None:
        _run([*command, "-c", "-o", str(to), str(source)])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_one, sources, objects))
    _run([*command, "-shared", "-o", str(made), *map(str, objects)])


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=True)


def _load(path: Path) -> ctypes.CDLL:
    # torch is imported above, so its libgomp is already there and the library shares it and its threads.
    assert torch.get_num_threads() >= 1
    functions = ctypes.CDLL(str(path))
    functions.pagefleet_write.restype = functions.pagefleet_layer.restype = ctypes.c_int64
    functions.pagefleet_panel_bytes.restype = functions.pagefleet_packed_floats.restype = ctypes.c_int64
    functions.pagefleet_panel_bytes.argtypes = (_LONG, _INT)
    functions.pagefleet_packed_floats.argtypes = (_LONG, _LONG, _INT)
    functions.pagefleet_pack.argtypes = (_ADDRESS, _LONG, _LONG, _INT, _ADDRESS, _INT, _INT)
    functions.pagefleet_int8_panel_words.restype = functions.pagefleet_int8_packed_words.restype = ctypes.c_int64
    functions.pagefleet_int8_panel_words.argtypes = (_LONG,)
    functions.pagefleet_int8_packed_words.argtypes = (_LONG, _LONG)
    functions.pagefleet_int8_pack.argtypes = (_ADDRESS, _ADDRESS, _LONG, _LONG, _ADDRESS, _INT, _INT)
    functions.pagefleet_move_pages.argtypes = (_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _LONG, _LONG, _INT)
    functions.pagefleet_rms_norm.argtypes = (_ADDRESS, _LONG, *[_ADDRESS] * 3, _LONG, _INT, _INT, _FLOAT, _INT)
    functions.pagefleet_gated_activation.argtypes = (_ADDRESS, _LONG, _ADDRESS, _LONG, _INT, _INT, _INT, _INT)
    return functions
