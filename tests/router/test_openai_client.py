"""A real engine through the router: the official client sees what it sees without one, errors and streams included."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from tests.router.router_program import RouterProgram, router_before
from tests.runtime.live_server import LiveServer, live_server
from tests.runtime.tiny_models import tiny_llama_directory

USER: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Bonn", "Kiel"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"

# What each request makes new: ids and times.
_NEW = re.compile(
    rb'"(?:chatcmpl|cmpl|resp|msg|call|req|fc)[-_][A-Za-z0-9-]+"|"(?:created|created_at|completed_at)":\d+'
)

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": USER}),
    "chat stream": (CHAT, {"messages": USER, "stream": True, "stream_options": {"include_usage": True}}),
    "two choices with logprobs": (
        CHAT,
        {"messages": USER, "n": 2, "logprobs": True, "top_logprobs": 2, "stream": True},
    ),
    "tool": (CHAT, {"messages": USER, "tools": [WEATHER], "tool_choice": "required"}),
    "tool stream": (CHAT, {"messages": USER, "tools": [WEATHER], "tool_choice": "required", "stream": True}),
    "completion of tokens": (COMPLETIONS, {"prompt": [5, 6, 7], "echo": True}),
    "several prompts": (COMPLETIONS, {"prompt": ["a", "b"]}),
    "response": (RESPONSES, {"input": "Hi"}),
    "response stream": (RESPONSES, {"input": "Hi", "stream": True}),
    "tokens": ("/tokenize", {"prompt": "Hi"}),
    "text": ("/detokenize", {"tokens": [5, 6]}),
    "unknown parameter": (CHAT, {"messages": USER, "max_tokens": -1}),
    "unknown model": (CHAT, {"messages": USER, "model": "TINY"}),
    "too long": (COMPLETIONS, {"prompt": "a" * 5000}),
    "unknown url": ("/v1/embeddings", {"input": "x"}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama_directory(folder, max_position_embeddings=1024)
    flags = ("--served-name", "tiny", "--kv-cache-budget-blocks", "80", "--model-max-length", "1024")
    with live_server(folder, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def router(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProgram]:
    port = httpx2.URL(server.url).port
    assert port is not None
    with router_before(tmp_path_factory.mktemp("router"), ["127.0.0.1"], port) as running:
        yield running


@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_is_the_same_with_the_router_and_without(
    server: LiveServer, router: RouterProgram, name: str
) -> None:
    path, fields = REQUESTS[name]
    body = {"model": "tiny", "seed": 3, "temperature": 0.7, "max_tokens": 8, **fields}
    if path == RESPONSES:
        body = {"model": "tiny", "temperature": 0, "max_output_tokens": 16, **fields}
    headers = {"x-request-id": f"same-{name.replace(' ', '-')}"}
    # The first one fills the prefix cache, which the usage tells.
    urls = (server.url, server.url, router.url)
    _, direct, routed = (httpx2.post(url + path, json=body, headers=headers, timeout=60) for url in urls)
    assert routed.status_code == direct.status_code
    assert _NEW.sub(b"new", routed.content) == _NEW.sub(b"new", direct.content)
    varying = {"date", "content-length"}
    assert {k: v for k, v in routed.headers.items() if k not in varying} == {
        k: v for k, v in direct.headers.items() if k not in varying
    }


def test_the_official_client_streams_calls_tools_and_raises_as_without_a_router(router: RouterProgram) -> None:
    with OpenAI(base_url=router.api, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        chunks = list(client.chat.completions.create(model="tiny", messages=USER, stream=True, max_tokens=5, seed=1))
        whole = client.chat.completions.create(model="tiny", messages=USER, max_tokens=5, seed=1)
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        )
        called = client.chat.completions.create(
            model="tiny", messages=USER, tools=[WEATHER], tool_choice="required", max_tokens=400, seed=1
        )
        assert called.choices[0].message.tool_calls
        with client.responses.stream(model="tiny", input="Hi", max_output_tokens=16) as stream:
            assert [event.type for event in stream][-1] in ("response.completed", "response.incomplete")
        with pytest.raises(openai.NotFoundError, match="TINY"):
            client.chat.completions.create(model="TINY", messages=USER)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="tiny", messages=USER, temperature=99)


def test_a_client_that_leaves_ends_its_request_in_the_engine(server: LiveServer, router: RouterProgram) -> None:
    with OpenAI(base_url=router.api, api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="tiny", prompt="Hi", max_tokens=900, stream=True, extra_body=_ENDLESS)
        next(iter(stream))
        with server.frozen_engine():  # so that it can't end by itself
            assert _figure(server, "sequences_running") == 1
            stream.close()
            server.wait_until(lambda: _figure(server, "requests_in_flight") == 0)


_ENDLESS = {"ignore_eos": True}


def _figure(server: LiveServer, name: str) -> float:
    page = httpx2.get(server.url + "/metrics").text
    return float(page.split(f"\npagefleet_{name} ")[1].split("\n")[0])


def test_an_engine_that_is_killed_in_a_stream_ends_it_with_an_error(tmp_path: Path) -> None:
    with live_server("simulated://llama-3.1-8b", "--served-name", "tiny") as server:
        port = httpx2.URL(server.url).port
        assert port is not None
        with (
            router_before(tmp_path, ["127.0.0.1"], port) as router,
            OpenAI(base_url=router.api, api_key="none", max_retries=0) as client,
        ):
            stream = client.completions.create(
                model="tiny", prompt="Hi", max_tokens=5000, stream=True, extra_body=_ENDLESS
            )
            next(iter(stream))
            server.process.kill()
            with pytest.raises(openai.APIError, match="is gone"):
                list(stream)
            server.process.wait(10)  # until then its port still takes connections
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model="tiny", prompt="Hi")
            assert refused.value.status_code == 503
