"""What the machine gives this process: cores, memory, instructions. Container limits count, not the host's size."""

import ctypes
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pagefleet_contract.names import ENV_MEMORY_LIMIT
from pagefleet_runtime.errors import ModelRefused

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class Machine:
    num_threads: int
    memory_bytes: int  # the container's limit, or what the machine has free
    memory_source: str  # which of the two
    has_bfloat16: bool
    is_memory_free: bool = False  # what processes hold is not part of it, as it is of a limit

    def share(self, num_ranks: int) -> "Machine":
        """Return what each of several processes may take of it."""
        if num_ranks == 1:
            return self
        source = f"{self.memory_source}, divided by {num_ranks}"
        return replace(
            self,
            num_threads=max(1, self.num_threads // num_ranks),
            memory_bytes=self.memory_bytes // num_ranks,
            memory_source=source,
        )

    def giving_back(self, held_bytes: int) -> "Machine":
        """Return the machine for processes that held so much when its memory was read. What was free lacked it
        already, and whoever plans the memory subtracts all that they hold."""
        if not self.is_memory_free:
            return self
        source = f"{self.memory_source}, and what the processes held"
        return replace(self, memory_bytes=self.memory_bytes + held_bytes, memory_source=source)


def read_machine(root: Path = Path("/")) -> Machine:
    """Return what /proc and /sys below `root` say, in cgroups of version 1 and 2. Raises ModelRefused where the
    environment's limit is no number."""
    memory, source, is_free = _memory(root)
    return Machine(
        num_threads=_num_threads(root),
        memory_bytes=memory,
        memory_source=source,
        has_bfloat16=_has_bfloat16(root),
        is_memory_free=is_free,
    )


def held_by_rank(rank: int) -> int:
    """Return the memory that a rank's process holds, and with rank 0's that of the server, which has started it."""
    return held_bytes(os.getpid()) + (held_bytes(os.getppid()) if rank == 0 else 0)


def held_bytes(process_id: int, root: Path = Path("/")) -> int:
    """Return the memory that the process's end alone would free, after giving back what this process has freed
    itself; 0 where the system doesn't say."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    lines = [line.split() for line in _read(root / f"proc/{process_id}/status").splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line and line[0] in ("RssAnon:", "RssShmem:"))


def _num_threads(root: Path) -> int:
    cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    threads = cores if quota is None else min(cores, max(1, int(quota)))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(asked)) if asked.isdigit() and int(asked) > 0 else threads


def _cpu_quota(root: Path) -> float | None:
    """Return the smallest quota in cores of this process's groups."""
    quotas = []
    for directory in _group_directories(root, "cpu"):
        words = _read(directory / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory(root: Path) -> tuple[int, str, bool]:
    """Return how much, from where, and whether it is what is free beside all processes."""
    figures = {line.split(":")[0]: line for line in _read(root / "proc/meminfo").splitlines()}
    total, available = (int(figures[name].split()[1]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limits = [total]
    told = os.environ.get(ENV_MEMORY_LIMIT, "")
    if told:
        if not (told.isascii() and told.isdecimal()):
            raise ModelRefused(f"{ENV_MEMORY_LIMIT} is {told!r}; expected a number of bytes, such as {2**31}")
        limits.append(int(told))
    for directory in _group_directories(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(directory / name)
            if text.isdigit():
                limits.append(int(text))
    if min(limits) < total:
        return min(limits), "the container's limit", False
    return available, "the machine's free memory", True


def _group_directories(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and of those above it, for both versions of cgroups."""
    directories = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = PurePosixPath(path.lstrip("/"))
        # In a container the path may be the host's, with nothing below it here; the base itself is then the group.
        directories += [base / group, *(base / parent for parent in group.parents)]
    return directories


def _has_bfloat16(root: Path) -> bool:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return bool(_BFLOAT16_FLAGS & set(value.split()))
    return False


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
