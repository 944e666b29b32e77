"""Probes and hooks against real servers and commands: what counts as good, and what is said where it isn't."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from pagefleet_local.node.environment import Place
from pagefleet_local.node.probing import Answer, Asked, ask
from pagefleet_local.node.process_spec import Grounds, ProcessSpec
from tests.e2e.cluster import Object


def asked(folder: Path, port: int = 1) -> Asked:
    place = Place("n1", "127.0.0.1")
    grounds = Grounds(place, folder, folder, folder, folder, folder, folder, (), lambda namespace, name: None)
    container = {"name": "c", "ports": [{"name": "http", "containerPort": port}]}
    process = ProcessSpec(("x",), {"PATH": str(Path(sys.executable).parent), "WORD": "hi"}, str(folder))
    return Asked(container, process, grounds, folder)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(5)
        if request.path == "/moved":
            raise web.HTTPFound("http://elsewhere.invalid/")
        if request.headers.get("x-key") != "k":
            return web.Response(status=401, text="no key")
        return web.Response(text="fine")

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def answer_of(action: Object, folder: Path, seconds: float = 10) -> Answer:
    async def run() -> Answer:
        async with serving() as port:
            return await ask(action, asked(folder, port), seconds)

    return asyncio.run(run())


KEY = {"httpHeaders": [{"name": "x-key", "value": "k"}]}


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ({"httpGet": {"port": "http", "path": "/ok", **KEY}}, Answer(True)),
        ({"httpGet": {"port": "http", **KEY}}, Answer(True)),
        ({"httpGet": {"port": "http", "path": "/moved"}}, Answer(True)),
        ({"httpGet": {"port": "http"}}, Answer(False, "HTTP probe failed with statuscode: 401 no key")),
        ({"httpGet": {"port": "none"}}, Answer(False, "container c has no port named none")),
        ({"httpGet": {"port": 1}}, Answer(False, "Connection refused")),
        ({"tcpSocket": {"port": "http"}}, Answer(True)),
        ({"tcpSocket": {"port": 1}}, Answer(False, "Connection refused")),
        ({"exec": {"command": ["python", "-c", "import os; print(os.environ['WORD'])"]}}, Answer(True, "hi")),
        ({"exec": {"command": ["python", "-c", "print('bad'); raise SystemExit(1)"]}}, Answer(False, "bad")),
        ({"sleep": {"seconds": 0}}, Answer(True)),
    ],
)
def test_an_answer_is_good_or_says_why_not(action: Object, answer: Answer, tmp_path: Path) -> None:
    assert answer_of(action, tmp_path) == answer


@pytest.mark.parametrize(
    "action",
    [
        {"httpGet": {"port": "http", "path": "/slow"}},
        {"exec": {"command": ["python", "-c", "import time; time.sleep(60)"]}},
        {"sleep": {"seconds": 60}},
    ],
)
def test_no_answer_in_time_is_a_bad_one(action: Object, tmp_path: Path) -> None:
    found = answer_of(action, tmp_path, 0.3)
    assert not found.good and "0.3s" in found.message


def test_a_command_that_is_not_there_is_a_bad_answer(tmp_path: Path) -> None:
    found = answer_of({"exec": {"command": ["no-such-program"]}}, tmp_path)
    assert not found.good and "no-such-program" in found.message
    assert list(tmp_path.glob("command-*")) == []
