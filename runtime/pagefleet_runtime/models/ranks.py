"""The processes that compute one model together. Rank 0 is the engine's own; it starts the others, tells them what to
run, and watches them. None outlives another: each pair is held together by a socket."""

import logging
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn, Protocol

import torch

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.engine_link import how_it_ended
from pagefleet_runtime.models.dtypes import Dtypes
from pagefleet_runtime.models.sharding import join_group
from pagefleet_runtime.plan import StepPlan

Lost = Callable[[str], NoReturn]

# How often a running step is looked at, to see whether a rank hangs.
_LOOK_SECONDS = 1.0
# How long what fails here is kept back: mostly another rank's end is the cause, and whoever watches that says it.
_CAUSE_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankTask:
    """What another rank must know to hold its share. `store` is the file by which the ranks find one another."""

    rank: int
    size: int
    store: str
    config: EngineConfig
    directory: Path
    dtypes: Dtypes


@dataclass(frozen=True, slots=True)
class RankFailed:
    message: str


class Ranks(Protocol):
    """One rank's view of all."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def meet(self, device: torch.device) -> None:
        """Become a group that can compute together. Every rank calls it once."""
        ...

    def least(self, value: int) -> int:
        """Return the least value of any rank. Every rank calls it, and waits for the last, however long that takes."""
        ...

    def fail(self, message: str) -> NoReturn:
        """End all ranks."""
        ...


def end_process(message: str) -> NoReturn:
    """Be what is done where a rank is lost: a thread that waits for it can't be woken."""
    logger.error("%s", message)
    os._exit(1)


class Alone:
    """The only rank."""

    rank = 0
    size = 1

    def meet(self, device: torch.device) -> None:
        pass

    def least(self, value: int) -> int:
        return value

    def fail(self, message: str) -> NoReturn:
        raise RuntimeError(message)


class Workers:
    """The other ranks, seen from rank 0. `lost` is called, from any thread, when one has ended, failed or hangs."""

    rank = 0

    def __init__(self, config: EngineConfig, directory: Path, dtypes: Dtypes, lost: Lost) -> None:
        self.size = config.parallel.tensor
        self._limit_seconds = config.serving.stall_limit_seconds
        self._lost = lost
        self._step: tuple[int, float] | None = None  # the running step's number, and since when it runs
        self._values: queue.SimpleQueue[int] = queue.SimpleQueue()
        # A file without a name, which nobody has to clean up.
        self._store = os.memfd_create("pagefleet-ranks")
        self._store_path = f"/proc/self/fd/{self._store}"
        self._processes: dict[Connection, tuple[int, subprocess.Popen[bytes]]] = {}
        for rank in range(1, self.size):
            self._start(RankTask(rank, self.size, self._store_path, config, directory, dtypes))
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def meet(self, device: torch.device) -> None:
        self.least(0)  # imports and compilers take as long as they take; the group's own patience has an end
        join_group(device, self.rank, self.size, self._store_path)

    def least(self, value: int) -> int:
        values = [value, *(self._values.get() for _ in self._processes)]
        for connection in self._processes:
            connection.send(min(values))
        return min(values)

    @contextmanager
    def running(self, plan: StepPlan) -> Iterator[None]:
        self._step = (plan.epoch, time.monotonic())
        message = pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)
        try:
            for connection in self._processes:
                connection.send_bytes(message)
        except OSError as error:
            self.fail(f"a rank doesn't take step {plan.epoch}: {error}")
        yield
        self._step = None

    def fail(self, message: str) -> NoReturn:
        time.sleep(_CAUSE_SECONDS)
        self._lost(f"rank 0: {message}")

    def _start(self, task: RankTask) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pagefleet_runtime.rank_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), self._store],
                env={**os.environ, "LOCAL_RANK": str(task.rank)},  # transformers picks the GPU by it
            )
        connection = Connection(ours.detach())
        connection.send(task)
        self._processes[connection] = (task.rank, process)

    def _watch(self) -> None:
        while True:
            for connection in wait(list(self._processes), _LOOK_SECONDS):
                assert isinstance(connection, Connection)
                self._take(connection)
            self._check_step(time.monotonic())

    def _take(self, connection: Connection) -> None:
        rank, process = self._processes[connection]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            self._lost(how_it_ended(process, f"rank {rank} of the engine"))
        if isinstance(message, RankFailed):
            self._lost(f"rank {rank}: {message.message}")
        self._values.put(message)

    def _check_step(self, now_seconds: float) -> None:
        step = self._step
        if step is not None and now_seconds - step[1] > self._limit_seconds:
            self._lost(
                f"step {step[0]} hasn't finished on {self.size} ranks within {self._limit_seconds} s "
                "(serving.stallLimitSeconds): one of them hangs"
            )


class Member:
    """A rank other than 0, seen from itself."""

    def __init__(self, connection: Connection, task: RankTask, end: Callable[[int], NoReturn]) -> None:
        self._connection = connection
        self._end = end
        self._store_path = task.store
        self.rank, self.size = task.rank, task.size

    def meet(self, device: torch.device) -> None:
        self.least(0)
        join_group(device, self.rank, self.size, self._store_path)

    def least(self, value: int) -> int:
        self._connection.send(value)
        least: int = self._connection.recv()
        return least

    def plans(self) -> Iterator[StepPlan]:
        """Yield what is to be run, until rank 0 is gone."""
        while True:
            try:
                yield pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return

    def fail(self, message: str) -> NoReturn:
        logger.error("%s", message)
        try:
            self._connection.send(RankFailed(message))
        except OSError:
            logger.error("rank 0 is gone")
        self._end(1)
