"""Ends processes that no node cares for: of pods that are gone from the API, and all of them for `pagefleet down`.

A pod's process is known by its record, and what has left its session by the folder that its environment names.
"""

import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pagefleet_contract.names import REASON_NODE_STOPPED
from pagefleet_local.node.folders import PodFolder, pod_folders
from pagefleet_local.node.processes import birth, kill_session, session_members
from pagefleet_local.node.records import PodRecord, Running, Terminated

STOPPED_CODE = 128 + signal.SIGTERM


def running_processes(record: PodRecord) -> list[int]:
    """Return the processes of the pod that its record knows and that still run."""
    states = [container.state for container in record.containers.values()]
    return [s.pid for s in states if isinstance(s, Running) and birth(s.pid) == s.born]


def end_processes(pids: Iterable[int], grace_seconds: float) -> None:
    """End the processes and all of their sessions: SIGTERM, after the grace SIGKILL. Blocks until they have ended."""
    opened: dict[int, int] = {}
    for pid in pids:
        try:
            opened[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    try:
        for descriptor in opened:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        _wait(opened, grace_seconds)
    finally:
        for descriptor, pid in opened.items():
            kill_session(pid)
            os.close(descriptor)


def _wait(descriptors: Iterable[int], seconds: float) -> None:
    left, deadline = set(descriptors), time.monotonic() + seconds
    while left and (remaining := deadline - time.monotonic()) > 0:
        left -= set(select.select(left, [], [], remaining)[0])


def end_all(state: Path, grace_seconds: float) -> int:
    """End the processes of all pods of a node that isn't running; return how many there were.

    The pods stay bound to the node, and the next node starts them again.
    """
    records = {folder: record for folder in pod_folders(state) if (record := folder.load())}
    pids = [pid for record in records.values() for pid in running_processes(record)]
    end_processes(pids, grace_seconds)
    end_strays(state, keep=frozenset())
    for folder, record in records.items():
        folder.save(_stopped(record, time.time()))
    return len(pids)


def _stopped(record: PodRecord, now: float) -> PodRecord:
    for container in list(record.containers.values()):
        if isinstance(container.state, Running):
            message = "ended because the node was stopped"
            ended = Terminated(STOPPED_CODE, REASON_NODE_STOPPED, message, container.state.started_at, now)
            record = record.having(replace(container, state=ended, started=False, ready=False))
    return record


def end_folder(folder: PodFolder) -> None:
    """End what runs of a pod that is gone from the API, and remove its folder."""
    if record := folder.load():
        end_processes(running_processes(record), record.grace_seconds)
    folder.remove()


def end_strays(state: Path, keep: frozenset[int]) -> list[int]:
    """Kill processes that were started for a pod of this state folder and belong to no session that is kept: one whose
    start a killed node didn't come to note, or one that left its pod's session."""
    mark = f"{state.resolve() / 'pods'}/".encode()
    strays = [pid for pid, session in session_members() if session not in keep and mark in _environment(pid)]
    for pid in strays:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return strays


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
