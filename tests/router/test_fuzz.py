"""Requests with random damage: none reaches a path that isn't the API's, and the router serves on as if nothing was."""

import asyncio
import contextlib
import logging
import random

import pytest

from tests.router.door import Door, door, until
from tests.router.scripted_replica import scripted_replica

pytestmark = pytest.mark.anyio

SEEDS = [
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx: y\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\nexpect: 100-continue\r\n"
    b"content-length: 2\r\n\r\n{}",
    b"HEAD /v1/models HTTP/1.0\r\nhost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\n\r\n",
]
PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\xff", b"?", b"#", b"*", b"/..", b"%2e", b"//", b"http://a/"),
    *(
        b"chunked",
        b"content-length: 3\r\n",
        b"transfer-encoding: chunked\r\n",
        b"host: y\r\n",
        b"Connection: close\r\n",
    ),
    *(b"HTTP/1.1", b"ffffffff\r\n", b"0\r\n\r\n"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _damaged(draw: random.Random) -> bytes:
    data = b"".join(draw.choice(SEEDS) for _ in range(draw.randint(1, 3)))
    for _ in range(draw.randint(1, 6)):
        place, kind = draw.randint(0, len(data)), draw.random()
        if kind < 0.4:
            data = data[:place] + draw.choice(PIECES) + data[place:]
        elif kind < 0.7:
            data = data[:place] + data[place + draw.randint(1, 8) :]
        else:
            data = data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
    return data


async def _send(d: Door, data: bytes, cut: int, reads: bool) -> None:
    """Send in two pieces, perhaps read a little, and leave without a word."""
    raw = await d.raw(b"")
    with contextlib.suppress(ConnectionError, TimeoutError):
        raw.writer.write(data[:cut])
        await asyncio.sleep(0)
        raw.writer.write(data[cut:])
        if reads:
            async with asyncio.timeout(0.05):
                await raw.reader.read(100)
    raw.writer.transport.abort()


@pytest.mark.parametrize("seed", [1, 2])
async def test_damaged_requests_leave_the_router_whole(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    draw = random.Random(seed)
    async with scripted_replica() as replica, door(replica, client_timeout_seconds=1) as d:
        for _ in range(8):
            # All is drawn before the first is sent: what is sent mustn't depend on who answers first.
            drawn = [_damaged(draw) for _ in range(50)]
            cuts = [(draw.randint(0, len(data)), draw.random() < 0.5) for data in drawn]
            await asyncio.gather(*(_send(d, data, *how) for data, how in zip(drawn, cuts, strict=True)))
        paths = [asked.line.split(" ")[1] for asked in replica.requests]
        assert paths and all(path.startswith("/v1/") for path in paths)
        await until(lambda: d.proxy.num_open == 0)
        assert (await d.http.get("/v1/models")).status_code == 200
    assert not caplog.records
