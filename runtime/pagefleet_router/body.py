"""Request bodies: received whole, because a request may have to be sent twice, and bounded in size, number and time."""

import asyncio

from starlette.types import Receive

from pagefleet_router.headers import Headers, header
from pagefleet_router.refusals import SLOW_BODY, TOO_MUCH_BUFFERED, Refused, body_too_large

_SLOWEST_BYTES_A_SECOND = 4096


class ClientLeft(Exception):
    """The client closed its connection."""


class Room:
    """Counts the bytes of bodies that are kept, all requests together."""

    def __init__(self, most_bytes: int) -> None:
        self.used_bytes = 0
        self._most_bytes = most_bytes

    def take(self, num_bytes: int) -> None:
        """Raises Refused (503) where there is no room for so many."""
        if self.used_bytes + num_bytes > self._most_bytes:
            raise Refused(TOO_MUCH_BUFFERED)
        self.used_bytes += num_bytes


class Body:
    """One request's body, and its place in the room."""

    def __init__(self, room: Room) -> None:
        self.content = b""
        self._room = room
        self._taken_bytes = 0

    async def read(self, headers: Headers, receive: Receive, most_bytes: int, patience_seconds: float) -> None:
        """Receive it whole; it may take that long, and longer the more has come.

        Raises Refused (408, 413, 503) or ClientLeft.
        """
        announced = header(headers, b"content-length")
        if announced is not None and int(announced) > most_bytes:
            raise Refused(body_too_large(most_bytes))
        pieces: list[bytes] = []
        started = asyncio.get_running_loop().time()
        while True:
            limit = started + patience_seconds + self._taken_bytes / _SLOWEST_BYTES_A_SECOND
            try:
                async with asyncio.timeout_at(limit):
                    message = await receive()
            except TimeoutError as error:
                raise Refused(SLOW_BODY) from error
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message["body"]
            self._take(len(piece), most_bytes)
            pieces.append(piece)
            if not message["more_body"]:
                break
        self.content = b"".join(pieces)

    def release(self) -> None:
        """It won't be sent again."""
        self.content = b""
        self._room.used_bytes -= self._taken_bytes
        self._taken_bytes = 0

    def _take(self, num_bytes: int, most_bytes: int) -> None:
        if self._taken_bytes + num_bytes > most_bytes:
            raise Refused(body_too_large(most_bytes))
        self._room.take(num_bytes)
        self._taken_bytes += num_bytes
