"""A server of a simulated model, as a process of its own: the whole API, no torch, little memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

from pagefleet_contract.api_keys import digest_line
from pagefleet_contract.metrics import STEPS
from pagefleet_contract.names import PATH_METRICS, PATH_POLICY, PATH_READY, PATH_STATE
from tests.runtime.live_server import LiveServer, live_server

MODEL = "llama-3.1-70b"
MOST_BYTES = 120 * 10**6
HEAVY = ("libtorch", "numpy", "tokenizers", "safetensors")
USER: Any = [{"role": "user", "content": "Say hello."}]
OPERATOR = {"authorization": "Bearer boss"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "operator").write_text(digest_line("boss") + "\n")
    (folder / "live.json").write_text('{"maxQueue": 33}')
    flags = ("--simulation-accelerator", "8xh200", "--live", str(folder / "live.json"))
    with live_server(f"simulated://{MODEL}", *flags, "--serving-operator-key-file", str(folder / "operator")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        yield client


def state(server: LiveServer) -> Any:
    return httpx2.get(server.url + PATH_STATE, headers=OPERATOR).raise_for_status().json()


def test_nothing_heavy_is_loaded_and_the_replica_is_small(server: LiveServer, client: openai.OpenAI) -> None:
    for _ in range(3):
        client.chat.completions.create(model=MODEL, messages=USER, max_tokens=50, n=8)
    process = psutil.Process(server.process.pid)
    assert process.children() == []
    mapped = {Path(region.path).name for region in process.memory_maps() if region.path.startswith("/")}
    assert not [name for name in mapped if any(heavy in name for heavy in HEAVY)]
    assert process.memory_info().rss < MOST_BYTES


def test_chats_stream_and_come_whole_alike(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "seed": 4, "max_tokens": 60}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content and len(text) == 60
    assert whole.usage is not None and whole.usage.completion_tokens == 60


def test_completions_have_choices_stops_echo_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=40, n=3, stop=[" "], echo=True, logprobs=2, seed=1
    )
    assert len({choice.text for choice in answer.choices}) > 1
    for choice in answer.choices:
        assert choice.text.startswith("Once") and " " not in choice.text and choice.finish_reason == "stop"
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None


def test_responses_and_tokens_answer(server: LiveServer, client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hello", max_output_tokens=30)
    assert answer.output_text
    tokens = httpx2.post(f"{server.url}/tokenize", json={"model": MODEL, "prompt": "é"}).raise_for_status().json()
    assert tokens["tokens"] == [0xC3, 0xA9]


def test_structured_output_and_forced_tools_are_followed(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    answer = client.chat.completions.create(model=MODEL, messages=USER, response_format=form)
    assert "city" in json.loads(answer.choices[0].message.content or "")
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    called = client.chat.completions.create(model=MODEL, messages=USER, tools=[tool], tool_choice="required")
    (call, *_) = called.choices[0].message.tool_calls or []
    assert call.type == "function" and "city" in json.loads(call.function.arguments)


def test_a_prefix_is_found_again(client: openai.OpenAI) -> None:
    prompt = "A long beginning that two requests share. " * 8
    counts = []
    for _ in range(2):
        usage = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        counts.append(usage.prompt_tokens_details.cached_tokens)
    assert counts[0] == 0 and (counts[1] or 0) > 300


def test_the_state_page_says_what_is_played(server: LiveServer) -> None:
    page = state(server)
    assert page["info"]["bytesPerBlock"] == 16 * 327_680
    assert page["config"]["simulation"]["accelerator"] == "8xh200"
    assert "pagefleet" in page["versions"]


def test_live_settings_of_the_file_are_in_force_and_can_change(server: LiveServer) -> None:
    assert state(server)["policy"]["maxQueue"] == 33
    changed = httpx2.post(server.url + PATH_POLICY, headers=OPERATOR, json={"maxQueue": 44})
    assert changed.status_code == 200 and state(server)["policy"]["maxQueue"] == 44


def test_the_figures_are_the_schedulers(server: LiveServer) -> None:
    page = httpx2.get(server.url + PATH_METRICS).text
    steps = next(line for line in page.splitlines() if line.startswith(f"{STEPS.name} "))
    assert float(steps.split()[-1]) > 0
    assert httpx2.get(server.url + PATH_READY).status_code == 200


def test_it_listens_at_every_address(server: LiveServer) -> None:
    with live_server("simulated://smollm2-135m", environment={"PAGEFLEET_LISTEN_ADDRESS": "*"}) as everywhere:
        port = everywhere.url.rpartition(":")[2]
        for host in ("127.0.0.1", "127.0.0.3", "[::1]"):
            assert httpx2.get(f"http://{host}:{port}{PATH_READY}").status_code == 200


def test_loading_is_alive_and_shows_how_far_it_is() -> None:
    with live_server("simulated://smollm2-135m", "--simulation-load-seconds", "3600", ready=False) as server:
        server.wait_until(lambda: httpx2.get(server.url + PATH_READY).json()["load"]["stage"] == "weights")
        assert server.status("/health/live") == 200
        refused = httpx2.post(f"{server.api}/completions", json={"model": "smollm2-135m", "prompt": "Hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
