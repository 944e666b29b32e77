"""Connections, as many as there are files for. Those too many are refused in words, never dropped; probes get through.

uvicorn would take connections until the process has no file left, and then close what comes, probes included.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagefleet_contract.names import HEADER_RETRY_AFTER
from pagefleet_contract.openai_error import CODE_TOO_MANY_CONNECTIONS, Refusal, error_object, json_bytes
from pagefleet_runtime.server.pacing import is_urgent

# Files that aren't connections: the engine's socket, logs, the tokenizer, keys that are read again.
_OTHER_FILES = 96
# Enough to be useful where the limit is absurdly small.
_LEAST_CONNECTIONS = 16
# In one turn of the loop: how many are accepted, how many begin, and how many silent ones are looked at.
_ACCEPT_PER_TURN = 256
_BEGIN_PER_TURN = 4
_LOOK_PER_TURN = 64
# How long a connection too many may take to say what it wants, and to read that it can't have it.
_SURPLUS_SECONDS = 5.0
# A head beyond this is no probe's.
_MOST_HEAD_BYTES = 8192
# How long to wait where the system has no file for one more connection.
_NO_FILES_SECONDS = 0.1

_REFUSAL = Refusal(
    503,
    CODE_TOO_MANY_CONNECTIONS,
    "the server has as many connections as it may; try again soon",
    retry_after_seconds=1,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections may be open, and how many of them may wait for answers; the others are for refusals and
    probes."""

    most: int
    working: int


def room_within(most_files: int) -> Room:
    """Return how many connections a process that may open so many files can serve."""
    most = max(_LEAST_CONNECTIONS, most_files - _OTHER_FILES)
    return Room(most, most - most // 4)


class Connections:
    """Accepts connections from a listening socket while there is room; the rest waits in the kernel's queue.

    Accepting is cheap, beginning isn't: what a connection wants is looked at first, and urgent ones don't wait.
    """

    def __init__(self, listener: socket.socket, room: Room, make_protocol: "Callable[[Connections], Working]") -> None:
        self.num_open = 0
        self._listener = listener
        self._room = room
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._accepting = False
        self._silent: deque[socket.socket] = deque()  # they haven't said yet what they want
        self._waiting: deque[socket.socket] = deque()
        self._turning = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        """Whether every connection that may wait for an answer is taken."""
        return self.num_open >= self._room.working

    def start(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    def stop(self) -> None:
        """Accept no more. Those that are open stay."""
        self._pause()
        self._room = Room(0, 0)

    def working_protocol(self) -> "Working":
        return self._make_protocol(self)

    def lost(self) -> None:
        """One of ours has closed."""
        self.num_open -= 1
        self._resume()

    # --- accepting

    def _resume(self) -> None:
        if not self._accepting and self.num_open < self._room.most:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_PER_TURN):
            if self.num_open >= self._room.most:
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("no connection can be accepted for now: %s", error)
                self._pause()
                self._loop.call_later(_NO_FILES_SECONDS, self._resume)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        surplus = self.full
        self.num_open += 1
        said = peeked(connection)
        path = path_of(said)
        if path is not None and is_urgent(path):
            self._begin(connection, self.working_protocol())
        elif surplus and is_whole(said):
            self._refuse(connection)
        elif surplus:
            self._begin(connection, _Surplus(self))
        else:
            (self._waiting if said else self._silent).append(connection)
            self._turn_soon()

    def _refuse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # a client that has left needs no answer
            connection.recv(_MOST_HEAD_BYTES)
            connection.send(refusal_bytes())
        self.num_open -= 1

    # --- beginning

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Begin a few of those that wait, and look whether silent ones have said something."""
        self._turning = False
        for _ in range(min(_BEGIN_PER_TURN, len(self._waiting))):
            self._begin(self._waiting.popleft(), self.working_protocol())
        for _ in range(min(_LOOK_PER_TURN, len(self._silent))):
            self._look(self._silent.popleft())
        if self._waiting or self._silent:
            self._turn_soon()

    def _look(self, connection: socket.socket) -> None:
        said = peeked(connection)
        path = path_of(said)
        if not self._waiting or (path is not None and is_urgent(path)):
            self._begin(connection, self.working_protocol())
        else:
            (self._waiting if said else self._silent).append(connection)

    def _begin(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        task = self._loop.create_task(self._connect(connection, protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # it closed before we began; its protocol never saw it
            connection.close()
            self.lost()


def peeked(connection: socket.socket) -> bytes:
    """Return what has arrived on a connection, and leave it there; nothing where nothing has."""
    try:
        return connection.recv(_MOST_HEAD_BYTES, socket.MSG_PEEK)
    except OSError:  # nothing yet, or the connection is broken: whoever reads it will see
        return b""


class Working(HttpToolsProtocol):
    """uvicorn's connection. It says when it has closed, and doesn't stay idle where others wait for its place."""

    def __init__(self, connections: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self._places = connections
        self._open_cycles: deque[RequestResponseCycle] = deque()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn tells the last request only; of several sent at once, the first is the one that runs.
        for cycle in self._open_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._places.lost()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        while self._open_cycles and self._open_cycles[0].response_complete:
            self._open_cycles.popleft()
        if self.cycle is not None:
            self._open_cycles.append(self.cycle)
        if self._places.full and self.cycle is not None:
            self.cycle.keep_alive = False


class _Surplus(asyncio.Protocol):
    """A connection too many: handed to uvicorn if it is urgent, refused otherwise."""

    def __init__(self, connections: Connections) -> None:
        self._places = connections
        self._received = b""
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's isn't derived from it
        self._limit = asyncio.get_running_loop().call_later(_SURPLUS_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # a body that nobody reads
        self._received += data
        path = path_of(self._received)
        if path is not None and is_urgent(path):
            self._hand_over()
        elif path is not None or len(self._received) > _MOST_HEAD_BYTES:
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        self._places.lost()

    def _hand_over(self) -> None:
        self._limit.cancel()
        working = self._places.working_protocol()
        self._transport.set_protocol(working)
        working.connection_made(self._transport)
        working.data_received(self._received)

    def _refuse(self) -> None:
        self._refused = True
        self._transport.write(refusal_bytes())
        if is_whole(self._received):
            self._transport.close()
        else:
            # Closing now would reset the connection, and the client might never read why.
            self._transport.write_eof()


def path_of(received: bytes) -> str | None:
    """Return the path of a request's first line, or None where it isn't there yet."""
    line, separator, _ = received.partition(b"\r\n")
    words = line.split(b" ")
    if not separator:
        return None
    return words[1].partition(b"?")[0].decode("latin-1") if len(words) == 3 else ""


def is_whole(received: bytes) -> bool:
    """Whether a request has come to its end, as far as its head says."""
    head, separator, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length:[ \t]*(\d{1,18})", head, re.IGNORECASE)
    return bool(separator) and b"chunked" not in head.lower() and len(body) >= (int(length[1]) if length else 0)


def refusal_bytes() -> bytes:
    """Return the answer to a request for which there is no room."""
    content = json_bytes(error_object(_REFUSAL))
    head = (
        f"HTTP/1.1 {_REFUSAL.status} Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"{HEADER_RETRY_AFTER}: {_REFUSAL.retry_after_seconds}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode("ascii") + content
