"""Server-sent events as they pass: whole ones go on at once, a stream that breaks gets a proper last event. Pure."""

import re

from pagefleet_contract.openai_error import Refusal, error_object, json_bytes

_END = b"\n\n"
_DONE = b"data: [DONE]\n\n"
# An event beyond this goes on in pieces.
_MOST_HELD_BYTES = 1024 * 1024
_NUMBER = re.compile(rb'"sequence_number":\s*(\d+)')
_LAST_RESPONSE_EVENTS = (b"response.completed", b"response.incomplete", b"response.failed")
RESPONSES_PATH = "/v1/responses"


class EventRelay:
    """Cuts a stream at the ends of events: a client that got half an event couldn't read the error after it."""

    def __init__(self, path: str) -> None:
        self._is_responses = path == RESPONSES_PATH
        self._held = b""
        self._in_pieces = False
        self._last = b""

    def push(self, data: bytes) -> bytes:
        """Take what has come; return what may go on, which is empty while an event isn't whole."""
        if self._held:
            data = self._held + data
        if data.endswith(_END):
            self._held, self._in_pieces, self._last = b"", False, data
            return data
        end = data.rfind(_END) + len(_END)
        if end < len(_END):
            if len(data) > _MOST_HELD_BYTES:
                self._held, self._in_pieces = b"", True
                return data
            self._held = data
            return b""
        self._held, self._in_pieces, self._last = data[end:], False, data[:end]
        return self._last

    def finish(self) -> bytes:
        """Return what is still held: the stream has come to its own end."""
        return self._held

    def break_off(self, refusal: Refusal) -> bytes:
        """Return the last bytes of a stream whose replica is gone: an error event, or nothing if all has been said."""
        if self._is_over():
            return b""
        # Half an event has gone: a line that begins anew is the best there is.
        return (_END if self._in_pieces else b"") + self._error_event(refusal)

    def _is_over(self) -> bool:
        if not self._is_responses:
            return self._last.endswith(_DONE)
        start = self._last.rfind(b"event: ")
        name = self._last[start:].partition(b"\n")[0].removeprefix(b"event: ")
        return name in _LAST_RESPONSE_EVENTS

    def _error_event(self, refusal: Refusal) -> bytes:
        if not self._is_responses:
            return b"data: " + json_bytes(error_object(refusal)) + _END
        numbers = _NUMBER.findall(self._last)
        event = {
            "type": "error",
            "code": refusal.code,
            "message": refusal.message,
            "param": None,
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        }
        return b"event: error\ndata: " + json_bytes(event) + _END
