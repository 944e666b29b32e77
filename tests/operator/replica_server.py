"""Small HTTP servers in the place of replicas: each has a loopback address of its own, on the port of all replicas."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pagefleet_contract.names import HTTP_PORT

_ADDRESSES = itertools.count(1)

STATE_PAGE: dict[str, Any] = {
    "versions": {"pagefleet": "0.1.0"},
    "model": "chat",
    "state": "ready",
    "load": {"stage": "warmup", "fraction": 1.0, "detail": ""},
    "info": {
        "dtype": "bfloat16",
        "quantization": "int8",
        "kvDtype": "bfloat16",
        "blockSize": 16,
        "numBlocks": 512,
        "bytesPerBlock": 4096,
        "maxLengthTokens": 2048,
        "notes": ["cut"],
    },
    "policy": {"maxQueue": 7, "maxSequences": None, "resetPrefixCache": False},
    "snapshot": {"blocksTotal": 500, "blocksLive": 41},
    "drain": {"draining": False, "inFlight": 3},
}


@dataclass
class Replica:
    """What it answers, and what it was asked."""

    ip: str
    page: Any = field(default_factory=lambda: STATE_PAGE)
    status: int = 200
    hold: threading.Event | None = None  # nothing is answered before it is set
    asked: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)  # method, path, login, body


@contextmanager
def replica(**given: Any) -> Iterator[Replica]:
    number = next(_ADDRESSES)
    made = Replica(f"127.90.{number // 250}.{number % 250 + 1}", **given)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            made.asked.append((self.command, self.path, self.headers.get("authorization"), body))
            if made.hold is not None:
                made.hold.wait(30)
            content = made.page if isinstance(made.page, bytes) else json.dumps(made.page).encode()
            try:
                self.send_response(made.status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                return  # whoever asked has left

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((made.ip, HTTP_PORT), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        if made.hold is not None:
            made.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
