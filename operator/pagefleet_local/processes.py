"""Programs that outlive the command that starts them: each in a session of its own, known by a small file.

The file holds the process id with the time at which the kernel started it, so that a later command finds the same
process or knows that it has ended; an id that was given to another program is never signalled.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pagefleet_local.errors import FleetError

_KEPT_LOG_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and under which name it is found again. It inherits nothing but what `environment` says."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Running:
    """A process that was started here, by this command or an earlier one."""

    name: str
    pid: int
    born: str
    command: tuple[str, ...]


class Processes:
    """The programs of one state folder: `run/NAME.json` says which process, `logs/NAME.log` what it wrote."""

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self.logs = folder / "logs"

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def find(self, name: str) -> Running | None:
        """Return the process of that name if it still runs."""
        try:
            found = json.loads((self._run / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        running = Running(**found | {"command": tuple(found["command"])})
        return running if _born(running.pid) == running.born else None

    def start(self, program: Program) -> Running:
        """Start the program, or return the process of its name that runs already."""
        if found := self.find(program.name):
            return found
        self._run.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.log_of(program.name)
        _keep_small(log)
        try:
            pid = os.posix_spawn(
                program.command[0],
                tuple(program.command),
                program.environment,
                setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
                ],
            )
        except OSError as error:
            raise FleetError(f"{program.command[0]} does not start: {error.strerror}") from error
        running = Running(program.name, pid, _born(pid), tuple(program.command))
        file = self._run / f"{program.name}.json"
        file.with_suffix(".new").write_text(json.dumps(asdict(running)))
        file.with_suffix(".new").replace(file)
        return running

    def stop(self, name: str, grace_seconds: float) -> None:
        """End the process with SIGTERM, after the grace with SIGKILL; return when it has ended. No process: nothing."""
        if running := self.find(name):
            with contextlib.suppress(ProcessLookupError), _opened(os.pidfd_open(running.pid)) as process:
                if _born(running.pid) == running.born:
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                    if not _ended(process, grace_seconds):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        _ended(process, 10)
            with contextlib.suppress(ChildProcessError):  # of an earlier command: its new parent reaps it
                os.waitpid(running.pid, os.WNOHANG)
        (self._run / f"{name}.json").unlink(missing_ok=True)

    def tail_of(self, name: str, num_lines: int = 8) -> str:
        """Return the last lines that the program wrote."""
        try:
            with self.log_of(name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-num_lines:])
        except FileNotFoundError:
            return ""


def wait_until_gone(processes: Processes, names: Sequence[str], deadline: float) -> list[str]:
    """Return which of the processes still run at the deadline (of the monotonic clock)."""
    left = [name for name in names if processes.find(name)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [name for name in left if processes.find(name)]
    return left


def _born(pid: int) -> str:
    """Return the boot and the tick in which the process began; empty when there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, ticks = fields[0], fields[19]
    return "" if state in "ZX" else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{ticks}"


def _inheritable() -> list[int]:
    """Return what the command's caller left open: a pipe that a program holds would never end for its reader."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [descriptor for descriptor in found if descriptor > 2 and _is_inheritable(descriptor)]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the one that listed them
        return False


@contextlib.contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(process: int, seconds: float) -> bool:
    return bool(select.select([process], [], [], seconds)[0])


def _keep_small(log: Path) -> None:
    if log.exists() and log.stat().st_size > _KEPT_LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))
