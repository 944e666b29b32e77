"""What the router costs: `python -m tests.bench.router` measures an instant engine with it and without, in turns.

Requests a second and their time, and for streams the time from an event's writing to its reading; beside them the
router's own CPU time per request and per event, which other programs on the machine don't change.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import psutil

from tests.bench.figures import percentile
from tests.bench.instant_engine import EVENTS
from tests.router.router_program import RouterProgram, router_before

_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 300}], "stream": True}).encode()
_REQUESTS = 1000


@dataclass(slots=True)
class Round:
    """One load on one door."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)  # of requests, or of events on their way
    cpu_seconds: float = 0.0

    def text(self, unit_count: int, through_router: bool) -> str:
        figures = [
            f"{unit_count / self.seconds:8.0f}/s",
            f"p50 {percentile(self.times, 50) * 1000:7.2f} ms",
            f"p99 {percentile(self.times, 99) * 1000:7.2f} ms",
        ]
        cpu = f"{self.cpu_seconds / unit_count * 1e6:6.0f} us CPU each" if through_router else ""
        return "  ".join([*figures, cpu]).rstrip()


async def _requests(port: int, number: int) -> list[float]:
    """Send requests one after the other on one connection; return how long each took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    request, times = head % len(_BODY) + _BODY, []
    for _ in range(number):
        begin = time.perf_counter()
        writer.write(request)
        head_bytes = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head_bytes.split(b"content-length: ")[1].split(b"\r\n")[0]))
        times.append(time.perf_counter() - begin)
    writer.close()
    await writer.wait_closed()
    return times


async def _stream(port: int) -> list[float]:
    """Follow one stream; return how long each event was on its way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(_BODY) + _BODY)
    times = []
    async for line in reader:
        if line.startswith(b"data: {"):
            times.append((time.monotonic_ns() - int(line[line.rindex(b":") + 1 : -2])) / 1e9)
    writer.close()
    assert len(times) == EVENTS, f"a stream ended after {len(times)} of {EVENTS} events"
    return times


async def _load(port: int, router: RouterProgram, works: list[Callable[[], Awaitable[list[float]]]]) -> Round:
    process = psutil.Process(router.process.pid)
    before, begin = process.cpu_times(), time.perf_counter()
    times = await asyncio.gather(*(work() for work in works))
    after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Round(time.perf_counter() - begin, [each for some in times for each in some], cpu)


@contextmanager
def _instant_engine() -> Iterator[int]:
    """Run the engine; yield its port."""
    command = [sys.executable, "-m", "tests.bench.instant_engine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = urlsplit(process.stdout.readline().split()[-1]).port
            assert port is not None
            yield port
        finally:
            process.kill()


def _merged(rounds: list[Round]) -> Round:
    """Return the rounds as one: medians of times, all latencies together."""
    return Round(
        median(each.seconds for each in rounds),
        [value for each in rounds for value in each.times],
        median(each.cpu_seconds for each in rounds),
    )


def measure(rounds: int, connections: list[int], streams: list[int]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        _instant_engine() as engine,
        router_before(Path(folder), ["127.0.0.1"], engine) as router,
    ):
        routed = urlsplit(router.url).port
        assert routed is not None
        print(f"the router at rest: {router.resident_bytes / 2**20:.0f} MiB resident")
        loads = [(f"{n:3} connections", n, _REQUESTS, "requests") for n in connections]
        loads += [(f"{n:3} streams", n, n * EVENTS, "events") for n in streams]
        for title, number, units, kind in loads:
            found: dict[str, list[Round]] = {"direct": [], "router": []}
            for _ in range(rounds):
                for name, port in (("direct", engine), ("router", routed)):
                    found[name].append(asyncio.run(_load(port, router, _works(kind, port, number))))
            for name, each in found.items():
                print(f"{title}, {kind:8} {name}: {_merged(each).text(units, name == 'router')}")
        print(f"the router after that: {router.resident_bytes / 2**20:.0f} MiB resident")


def _works(kind: str, port: int, number: int) -> list[Callable[[], Awaitable[list[float]]]]:
    if kind == "events":
        return [lambda: _stream(port)] * number
    return [lambda: _requests(port, _REQUESTS // number)] * number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--streams", type=int, nargs="*", default=[8, 64, 500])
    given = parser.parse_args()
    measure(given.rounds, given.connections, given.streams)
