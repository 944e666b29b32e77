"""The API over a scripted engine, in process: what a test sends, and what it sees."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.engine import EngineConfig, ModelSettings, ServingSettings
from pagefleet_runtime.engine_client import EngineClient
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.server.app import create_app
from pagefleet_runtime.text.model_tokenizer import load_tokenizer
from tests.runtime.scripted_engine import ScriptedEngine, engine_info
from tests.runtime.tiny_tokenizer import write_tiny_tokenizer

MODEL = "tiny"
USER = [{"role": "user", "content": "Hi"}]
CHAT_URL, COMPLETIONS_URL, RESPONSES_URL = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@dataclass
class Api:
    app: FastAPI
    engine: ScriptedEngine
    client: EngineClient
    http: httpx2.AsyncClient
    observed: RequestFigures

    def _samples(self, suffix: str) -> dict[str, float]:
        families = [family for _, family in self.observed.families()]
        samples = [sample for family in families for sample in family.samples if sample.name.endswith(suffix)]
        return {sample.name.removeprefix("pagefleet_").removesuffix(suffix): sample.value for sample in samples}

    def figures(self) -> dict[str, float]:
        """Return how often each histogram was observed."""
        return self._samples("_count")

    def figure_sum(self, name: str) -> float:
        return self._samples("_sum")[name]

    async def post(self, url: str, body: dict[str, Any], **headers: str) -> httpx2.Response:
        return await self.http.post(url, json={"model": MODEL, **body}, headers=headers)

    async def chat(self, **fields: Any) -> httpx2.Response:
        return await self.post(CHAT_URL, {"messages": USER, **fields})

    async def complete(self, **fields: Any) -> httpx2.Response:
        return await self.post(COMPLETIONS_URL, {"prompt": "Hi", **fields})

    async def respond(self, **fields: Any) -> httpx2.Response:
        return await self.post(RESPONSES_URL, {"input": "Hi", **fields})


@contextlib.asynccontextmanager
async def api(
    tmp_path: Path, engine: ScriptedEngine | None = None, serving: ServingSettings | None = None, **info: Any
) -> AsyncIterator[Api]:
    write_tiny_tokenizer(tmp_path)
    engine = engine or ScriptedEngine(engine_info(str(tmp_path), **info))
    config = EngineConfig(model=ModelSettings(uri=f"org/{MODEL}"), serving=serving or ServingSettings())
    figures = RequestFigures()
    client = EngineClient(engine, config.serving, figures)
    keys = ApiKeys.load(config.serving.api_keys_file)
    app = create_app(client, config, figures, keys, lambda info: load_tokenizer(info.model_directory))
    client.start()
    if engine.info is not None:
        await client.loaded()
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Api(app, engine, client, http, figures)
    client.stop()


def events(text: str) -> list[Any]:
    """Return the data of each server-sent event; frames must be exactly as OpenAI writes them."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    found = []
    for frame in frames:
        lines = [line for line in frame.split("\n") if not line.startswith("event: ")]
        assert len(lines) == 1 and lines[0].startswith(("data: ", ": ")), frame
        if lines[0].startswith("data: "):
            data = lines[0].removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """Return OpenAI's error object, and check that it is one, complete and without anything of ours in it."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["code"], str) and isinstance(error["message"], str)
    for word in ("Traceback", "pagefleet_runtime", "pydantic", "Error(", "Exception"):
        assert word not in response.text
    return dict(error)


class RawCall:
    """One request by hand, for a client that leaves: the ASGI app with our own receive and send."""

    def __init__(self, app: FastAPI, url: str, body: dict[str, Any]) -> None:
        self.sent: list[Any] = []
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        content = json.dumps({"model": MODEL, **body}).encode()
        self._incoming.put_nowait({"type": "http.request", "body": content, "more_body": False})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": url,
            "raw_path": url.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self._task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def leave(self) -> None:
        """Close the connection and wait until the server has noticed."""
        self._incoming.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(self._task, 20)

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


async def until(holds: Any) -> None:
    """Let the loop run until something has come about."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is waited for happens inside the app, which tells nobody
            await asyncio.sleep(0)
