"""Asking a container: HTTP, TCP or a command. An answer is good or it says why not."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from pagefleet_local.node.pods import Manifest, named_port
from pagefleet_local.node.process_spec import Grounds, ProcessSpec, hook_spec
from pagefleet_local.node.processes import StartError, run_command

_USER_AGENT = "kube-probe/pagefleet"
_SHOWN_BYTES = 1024


@dataclass(frozen=True)
class Answer:
    good: bool
    message: str = ""


@dataclass(frozen=True)
class Asked:
    """A container that is asked: where it is, and what a command in it is run with."""

    container: Manifest
    process: ProcessSpec
    grounds: Grounds
    scratch: Path


async def ask(action: Manifest, asked: Asked, timeout_seconds: float) -> Answer:
    """Do what a probe or hook says, within the time."""
    try:
        if "exec" in action:
            return await _run(action["exec"]["command"], asked, timeout_seconds)
        async with asyncio.timeout(timeout_seconds):
            if "httpGet" in action:
                return await _get(action["httpGet"], asked)
            if "tcpSocket" in action:
                return await _connect(action["tcpSocket"], asked)
            await asyncio.sleep(float((action.get("sleep") or {}).get("seconds") or 0))
            return Answer(True)
    except TimeoutError:
        return Answer(False, f"no answer within {timeout_seconds:g}s")
    except OSError as error:  # of aiohttp's too: it couldn't connect
        return Answer(False, os.strerror(error.errno) if error.errno else str(error) or type(error).__name__)
    except (aiohttp.ClientError, StartError, ValueError) as error:
        return Answer(False, str(error) or type(error).__name__)


async def _run(command: list[str], asked: Asked, timeout_seconds: float) -> Answer:
    spec = hook_spec(command, asked.process, asked.container, asked.grounds)
    # The commands of one container may run at the same time.
    output = asked.scratch / f"command-{id(spec)}.out"
    try:
        code, text = await run_command(spec, output, timeout_seconds)
    finally:
        output.unlink(missing_ok=True)
    return Answer(code == 0, text)


def _port(action: Manifest, asked: Asked) -> int:
    port = named_port(asked.container, action["port"])
    if port is None:
        raise ValueError(f"container {asked.container['name']} has no port named {action['port']}")
    return port


async def _connect(action: Manifest, asked: Asked) -> Answer:
    host = action.get("host") or asked.grounds.place.address
    _, writer = await asyncio.open_connection(host, _port(action, asked))
    writer.close()
    await writer.wait_closed()
    return Answer(True)


async def _get(action: Manifest, asked: Asked) -> Answer:
    host = action.get("host") or asked.grounds.place.address
    path = action.get("path") or "/"
    scheme = (action.get("scheme") or "HTTP").lower()
    url = f"{scheme}://{host}:{_port(action, asked)}/{path.removeprefix('/')}"
    headers = {"User-Agent": _USER_AGENT, "Accept": "*/*"}
    headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
    connector = aiohttp.TCPConnector(force_close=True, ssl=False)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        if 200 <= response.status < 400:
            return Answer(True)
        body = (await response.content.read(_SHOWN_BYTES)).decode(errors="replace")
        return Answer(False, f"HTTP probe failed with statuscode: {response.status} {body}".strip())
