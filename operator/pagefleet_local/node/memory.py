"""Memory limits: a container whose processes hold more than its limit is ended, as a kernel would end it.

Counted is what only ending a process frees (anonymous and shared pages), every second; pages of files, such as mapped
weights, are not. A burst between two looks goes unseen.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pagefleet_local.node.processes import resident_bytes, session_members

_LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Limit:
    bytes: int
    exceeded: Callable[[], None]


class MemoryWatch:
    def __init__(self) -> None:
        self._limits: dict[int, _Limit] = {}

    def add(self, session: int, limit_bytes: int, exceeded: Callable[[], None]) -> None:
        self._limits[session] = _Limit(limit_bytes, exceeded)

    def remove(self, session: int) -> None:
        self._limits.pop(session, None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._limits:
                self._look()

    def _look(self) -> None:
        used: dict[int, int] = {}
        for pid, session in session_members():
            if session in self._limits:
                used[session] = used.get(session, 0) + resident_bytes(pid)
        for session, total in used.items():
            limit = self._limits[session]
            if total > limit.bytes:
                _log.info("session %d holds %d bytes, more than its limit of %d", session, total, limit.bytes)
                limit.exceeded()
