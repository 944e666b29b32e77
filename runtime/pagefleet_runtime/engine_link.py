"""What carries messages between the server and the engine. It knows no meaning, only order, loss and end.

`ProcessLink` runs the engine in a child process over a socket pair; `ThreadLink` runs it in a thread of this process.
"""

import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.protocol import FromEngine, Shutdown, ToEngine

Deliver = Callable[[FromEngine], None]
Lost = Callable[[str], None]
Inbox = queue.SimpleQueue[ToEngine]

# How long an engine that was told to end may take before it is killed.
_STOP_SECONDS = 5

logger = logging.getLogger(__name__)


class EngineLink(Protocol):
    def start(self, deliver: Deliver, lost: Lost) -> None:
        """Start the engine. `deliver` and `lost` are called from a thread of the link's own, in order; `lost` at most
        once, with what happened, when the engine ends without having been told to."""
        ...

    def send(self, message: ToEngine) -> None:
        """Queue a message. Never blocks and never fails: what is sent to a lost engine is dropped."""
        ...

    def stop(self) -> None:
        """End the engine, by force if it doesn't listen. Blocks for a few seconds at most. Idempotent."""
        ...


class ProcessLink:
    """The engine in a child process that dies with this one: it ends when its socket does."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._outbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, deliver: Deliver, lost: Lost) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pagefleet_runtime.engine_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C at a terminal is for this process, which decides what becomes of the child
            )
        connection = Connection(ours.detach())
        connection.send_bytes(self._config.model_dump_json(by_alias=True).encode())
        reader = (self._read, (connection, self._process, deliver, lost), "engine-reader")
        writer = (self._write, (connection,), "engine-writer")
        for target, arguments, name in (reader, writer):
            threading.Thread(target=target, args=arguments, name=name, daemon=True).start()

    def send(self, message: ToEngine) -> None:
        self._outbox.put(message)

    def stop(self) -> None:
        self._stopping.set()
        if self._process is None:
            return
        self._outbox.put(Shutdown())
        self._outbox.put(None)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the engine process didn't end within %d s; it is killed", _STOP_SECONDS)
            self._process.kill()
            self._process.wait()

    def _write(self, connection: Connection) -> None:
        """Send what is queued. In a thread of its own, because an engine that doesn't read would block the sender."""
        while (message := self._outbox.get()) is not None:
            try:
                connection.send(message)
            except OSError:
                return  # the reader sees the same end, and reports it

    def _read(self, connection: Connection, process: "subprocess.Popen[bytes]", deliver: Deliver, lost: Lost) -> None:
        try:
            while True:
                deliver(connection.recv())
        except (EOFError, OSError):
            pass  # its end: what it means is said below
        except Exception:
            logger.exception("a message from the engine process can't be read")
        if not self._stopping.is_set():
            lost(_end_of(process))


def _end_of(process: "subprocess.Popen[bytes]") -> str:
    """Wait for a process whose socket has closed, and say in words how it ended."""
    try:
        code = process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "the engine process closed its connection"
    if code < 0:
        return f"the engine process was killed by {signal.Signals(-code).name}"
    return f"the engine process ended with exit code {code}; its log says why"


class ThreadLink:
    """The engine in a thread of this process: for tests, and for executors that compute nothing."""

    def __init__(self, run: Callable[[Inbox, Deliver], None]) -> None:
        """`run` loads and runs the engine until it takes a Shutdown from the inbox."""
        self._run = run
        self._inbox: Inbox = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver, lost: Lost) -> None:
        self._thread = threading.Thread(target=self._main, args=(deliver, lost), name="engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def stop(self) -> None:
        self._inbox.put(Shutdown())
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _main(self, deliver: Deliver, lost: Lost) -> None:
        try:
            self._run(self._inbox, deliver)
        except Exception as error:
            logger.exception("the engine thread ended")
            lost(f"the engine ended: {type(error).__name__}: {error}")
