"""The clients of the end-to-end tests miss nothing: whatever goes wrong with a request is a fault in their tally."""

import json
import socket
from typing import Any

import httpx2
import pytest

from tests.e2e.traffic import started_clients, stream_once

URL = "http://chat.test"


def _chunk(text: str, finish: str | None = None) -> bytes:
    choice: dict[str, Any] = {"delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def _fault(status: int, content: bytes) -> str:
    answer = httpx2.MockTransport(lambda _: httpx2.Response(status, content=content))
    with httpx2.Client(transport=answer) as client:
        return stream_once(client, URL, "chat", 8)


def test_a_stream_that_says_all_has_no_fault() -> None:
    assert _fault(200, _chunk("a") + _chunk("b\u0085", "length") + b"data: [DONE]\n\n") == ""


@pytest.mark.parametrize(
    ("status", "content", "fault"),
    [
        (503, b"busy", "503: busy"),
        (200, _chunk("a"), "ended after 1 tokens without an end"),
        (200, _chunk("a") + b'data: {"error": {"code": "x"}}\n\n', "error event after 1 tokens"),
        (200, _chunk("a") + b'data: {"choi\n\n', "JSONDecodeError after 1 tokens"),
        (200, b'data: {"choices": []}\n\n', "IndexError after 0 tokens"),
        (200, b"data: {}\n\n", "KeyError after 0 tokens"),
    ],
)
def test_whatever_ends_a_request_is_told(status: int, content: bytes, fault: str) -> None:
    assert _fault(status, content).startswith(fault)


def test_a_client_that_still_reads_when_time_is_up_has_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        clients = started_clients(f"http://127.0.0.1:{silent.getsockname()[1]}", "chat", 1, 8)
        clients.join(0.1)
        assert clients.tally.faults == ["client-0 still reads after 0.1 s"]
    clients.threads[0].join(20)
