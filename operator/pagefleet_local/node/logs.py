"""Containers' logs: a process writes straight into its file, so nothing is lost when the node is not there.

When a line was written is known to half a second: the keeper notes at which time the file had grown to which size, in
a file of times beside it. A log that grows too long loses its beginning: the file keeps its length, with a hole.
"""

import asyncio
import bisect
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from pagefleet_local.node.log_space import MOST_BYTES, first_kept, forget_beginning

_STAMP_SECONDS = 0.5
_FOLLOW_SECONDS = 0.1
_ENTRY = struct.Struct("<Qd")  # size of the file, time at which it was seen
_BLOCK = 1 << 16
# What the kubelet takes for a termination message from a log.
_MESSAGE_BYTES, _MESSAGE_LINES = 2048, 80


@dataclass(frozen=True)
class LogQuery:
    """What `kubectl logs` asks of one container's log."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: float | None = None
    limit_bytes: int | None = None


class LogKeeper:
    """Notes when logs grow, and cuts them. One for all logs of the node."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}

    def add(self, log: Path) -> None:
        times = _times(log)
        self._sizes[log] = times[-1][0] if times else 0

    def remove(self, log: Path) -> None:
        """Stop, after a last look."""
        if log in self._sizes:
            self._look(log)
            del self._sizes[log]

    async def run(self) -> None:
        while True:
            for log in list(self._sizes):
                self._look(log)
            await asyncio.sleep(_STAMP_SECONDS)

    def _look(self, log: Path) -> None:
        try:
            size = log.stat().st_size
        except FileNotFoundError:
            return
        if size > self._sizes[log]:
            self._sizes[log] = size
            with _times_file(log).open("ab") as times:
                times.write(_ENTRY.pack(size, time.time()))
            if size > MOST_BYTES:
                forget_beginning(log, size)


async def read_log(log: Path, query: LogQuery, goes_on: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the log from where the query says. Followed, it ends when `goes_on` says so and all has been read."""
    budget = query.limit_bytes
    stamps = _Stamps(log)
    with log.open("rb") as file:
        position = _beginning(log, query)
        rest = b""
        while True:
            ended = not goes_on()
            file.seek(position)
            chunk = await asyncio.to_thread(file.read, _BLOCK)
            position += len(chunk)
            if query.timestamps:
                *whole, rest = (rest + chunk).split(b"\n")
                start = position - len(rest) - sum(len(line) + 1 for line in whole)
                chunk = b"".join(stamps.stamped(start, whole))
            if not chunk and not rest and (ended or not query.follow):
                return
            if not chunk and rest and (ended or not query.follow):
                chunk, rest = b"".join(stamps.stamped(position - len(rest), [rest])), b""
            if budget is not None:
                chunk = chunk[:budget]
                budget -= len(chunk)
            if chunk:
                yield chunk
            elif not ended:
                await asyncio.sleep(_FOLLOW_SECONDS)
            if budget == 0:
                return


def tail_message(log: Path) -> str:
    """Return the end of the log as a termination message."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(_tail_offset(file, size, _MESSAGE_LINES), size - _MESSAGE_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _beginning(log: Path, query: LogQuery) -> int:
    with log.open("rb") as file:
        offset = first_kept(file)
        if query.since is not None:
            offset = max(offset, _offset_since(log, query.since))
        if query.tail_lines is not None:
            offset = max(offset, _tail_offset(file, file.seek(0, 2), query.tail_lines))
        return offset


def _tail_offset(file: BinaryIO, size: int, num_lines: int) -> int:
    """Return where the last lines of a file of this size begin; a line break at its very end begins no line."""
    if num_lines <= 0:
        return size
    end, seen, first = size, 0, first_kept(file)
    while end > first:
        start = max(first, end - _BLOCK)
        file.seek(start)
        block = file.read(end - start)
        index = len(block) - (1 if end == size else 0)
        while (index := block.rfind(b"\n", 0, index)) >= 0:
            seen += 1
            if seen == num_lines:
                return start + index + 1
        end = start
    return first


def _offset_since(log: Path, since: float) -> int:
    offset = 0
    for size, seen in _times(log):
        if seen >= since:
            return offset
        offset = size
    return offset


class _Stamps:
    """The time of each line of a log, from the file of times; what is newer than that is from now."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._entries = _times(log)

    def stamped(self, start: int, lines: list[bytes]) -> Iterator[bytes]:
        if lines and (not self._entries or self._entries[-1][0] <= start):
            self._entries = _times(self._log)
        for line in lines:
            yield f"{_long_timestamp(self._at(start))} ".encode() + line + b"\n"
            start += len(line) + 1

    def _at(self, offset: int) -> float:
        index = bisect.bisect_right(self._entries, offset, key=lambda entry: entry[0])
        return self._entries[index][1] if index < len(self._entries) else time.time()


def _long_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def _times_file(log: Path) -> Path:
    return log.with_suffix(".times")


def _times(log: Path) -> list[tuple[int, float]]:
    try:
        data = _times_file(log).read_bytes()
    except FileNotFoundError:
        return []
    whole = len(data) - len(data) % _ENTRY.size
    return [(size, seen) for size, seen in _ENTRY.iter_unpack(data[:whole])]
