"""Processes that outlive the node that starts them: start, find again, signal, wait for the end and its code.

Each leads a session of its own, and all of the session ends with it, as all of a container ends with its first
process. A process is known by number and birth (boot and clock tick), so another one with the number is never touched.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagefleet_local.node.process_spec import ProcessSpec

EXEC_FAILED_CODE = 128


class StartError(Exception):
    """The command can't be started: no such program, no such folder."""


class Process:
    """A running process, ours or one that an earlier node started."""

    def __init__(self, pid: int, born: str, child: "subprocess.Popen[bytes] | None") -> None:
        self.pid = pid
        self.born = born
        self._child = child
        self._descriptor = os.pidfd_open(pid)
        self.exit_code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    @classmethod
    def start(cls, spec: ProcessSpec, output: Path, fresh: bool = False) -> "Process":
        """Start it with its output at the end of a file, or in a fresh one. Raises StartError."""
        program = shutil.which(spec.argv[0], path=spec.environment.get("PATH", ""))
        if program is None:
            raise StartError(f'exec: "{spec.argv[0]}": executable file not found in {spec.environment.get("PATH")}')
        if not Path(spec.folder).is_dir():
            raise StartError(f"workingDir {spec.folder} is no folder of this machine")
        try:
            with output.open("wb" if fresh else "ab") as log:
                child = subprocess.Popen(
                    spec.argv,
                    executable=program,
                    env=spec.environment,
                    cwd=spec.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise StartError(f"exec: {spec.argv[0]!r}: {error.strerror}") from error
        return cls(child.pid, birth(child.pid) or "", child)

    @classmethod
    def adopt(cls, pid: int, born: str) -> "Process | None":
        """Take over a process that an earlier node started; None where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            process = cls(pid, born, None)
            if birth(pid) == born:
                return process
            process.let_go()
        return None

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not self.exit_code.done():
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    async def ended(self, seconds: float | None = None) -> bool:
        """Wait so long for the end; return whether it came."""
        await asyncio.wait([self.exit_code], timeout=seconds)
        return self.exit_code.done()

    async def ended_or(self, task: "asyncio.Task[Any]") -> None:
        """Wait for its end or for the task's."""
        both: list[asyncio.Future[Any]] = [self.exit_code, task]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)

    def let_go(self) -> None:
        """Watch it no longer; it goes on."""
        if not self.exit_code.done():
            self.exit_code.cancel()
            self._close()

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        if self._child:
            code: int | None = self._child.wait()
        else:
            code = _code_of_ended(self.pid, self._descriptor)
        kill_session(self.pid)
        os.close(self._descriptor)
        if not self.exit_code.done():
            self.exit_code.set_result(None if code is None else 128 - code if code < 0 else code)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._child:
            self._child.returncode = 0  # or its finalizer complains that it still runs


def birth(pid: int) -> str | None:
    """Return what tells this process from another with its number; None where it has ended."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return f"{_boot()}:{fields[19]}"


def session_members() -> Iterator[tuple[int, int]]:
    """Yield every process of the machine with its session."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            yield int(entry), int(fields[3])


def kill_session(session: int) -> None:
    """End what a container's first process left behind."""
    for pid, of in list(session_members()):
        if of == session:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """Return the memory that only ending the process would free: anonymous and shared pages, no file's."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# PIDFD_GET_INFO of Linux 6.15 and later: the exit code of a process that is no child of ours, after it was reaped.
_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60


def _code_of_ended(pid: int, descriptor: int) -> int | None:
    """Return the exit code of a process that is not our child, where this kernel still knows it."""
    fields = _stat(pid)
    if fields is not None and fields[0] == "Z":
        return os.waitstatus_to_exitcode(int(fields[49]))
    info = bytearray(64)
    struct.pack_into("<Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    if not struct.unpack_from("<Q", info, 0)[0] & _INFO_EXIT:
        return None
    return os.waitstatus_to_exitcode(struct.unpack_from("<i", info, _EXIT_CODE_OFFSET)[0])


async def run_command(spec: ProcessSpec, output: Path, seconds: float) -> tuple[int | None, str]:
    """Run a short command to its end; return its code and what it wrote. None: it took too long and was killed."""
    process = Process.start(spec, output, fresh=True)
    try:
        if not await process.ended(seconds):
            process.kill()
            await process.ended()
            return None, f"command timed out after {seconds:g}s"
    except asyncio.CancelledError:
        process.kill()
        await process.ended()
        raise
    return process.exit_code.result(), _beginning(output)


def _beginning(output: Path) -> str:
    with output.open("rb") as written:
        return written.read(10240).decode(errors="replace").strip()
