"""What carries messages between the server and the engine. It knows no meaning, only order, loss and end.

`ProcessLink` runs the engine in a child process over a socket pair; tests bring links of their own.
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

# How long an engine that was told to end may take before it is killed: an idle server is gone within three seconds.
_STOP_SECONDS = 2
# How long an engine may take to end after its socket has closed.
_END_SECONDS = 5

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
            lost(how_it_ended(process, "the engine process"))


def how_it_ended(process: "subprocess.Popen[bytes]", name: str) -> str:
    """Wait for a process whose socket has closed, and say in words how it ended."""
    try:
        code = process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"{name} closed its connection"
    if code == -signal.SIGKILL:
        return f"{name} was killed by SIGKILL, which is what happens where memory runs out"
    if code < 0:
        return f"{name} was killed by {signal.Signals(-code).name}"
    return f"{name} ended with exit code {code}; its log says why"
