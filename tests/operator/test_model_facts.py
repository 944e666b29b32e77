"""What is known about a model before any pod runs; the hub is a small server of the test."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pagefleet_contract.capacity import LayerShape, ModelWidths, bytes_per_token
from pagefleet_contract.inferenceservice import ModelSpec
from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.model_config import UnknownShape, max_length_of, shape_of, widths_of
from pagefleet_operator.model_facts import ModelFactsBook, Pending
from pagefleet_operator.observed import ModelFacts

KEY = ServiceKey("prod", "chat", "uid-1")
_HOLD_SECONDS = 60
LLAMA_70B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "max_position_embeddings": 131072,
}


@dataclass
class _Hub:
    url: str
    files: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hold: threading.Event | None = None


@contextmanager
def _hub() -> Iterator[_Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.asked.append(self.path)
            if hub.hold is not None:
                hub.hold.wait(_HOLD_SECONDS)
            content = hub.files.get(self.path)
            body = json.dumps(content).encode() if content is not None else b"not here"
            self.send_response(200 if content is not None else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = _Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _ask(hub_url: str, model: ModelSpec) -> ModelFacts:
    """Ask until something is known."""

    async def run() -> ModelFacts:
        known = asyncio.Event()
        book = ModelFactsBook(hub_url, lambda key: known.set())
        try:
            found = book.facts(model, KEY)
            if isinstance(found, Pending):
                async with asyncio.timeout(15):
                    await known.wait()
                found = book.facts(model, KEY)
            assert isinstance(found, ModelFacts)
            return found
        finally:
            await book.close()

    return asyncio.run(run())


def test_a_well_known_model_is_known_at_once_and_nobody_is_asked() -> None:
    with _hub() as hub:
        for uri in ("simulated://llama-3.1-8b", "hf://meta-llama/Llama-3.1-8B-Instruct"):
            facts = _ask(hub.url, ModelSpec(uri=uri))
            assert facts.shape is not None and len(facts.shape.layers) == 32
            assert facts.source == "the list of well-known models"
            assert facts.widths == ModelWidths(128_256, 4096, 14_336)
        assert hub.asked == []


def test_a_hub_models_shape_and_weights_come_from_its_files() -> None:
    with _hub() as hub:
        hub.files = {
            "/acme/big/resolve/main/config.json": LLAMA_70B | {"vocab_size": 128_256, "intermediate_size": 28_672},
            "/acme/big/resolve/main/model.safetensors.index.json": {"metadata": {"total_size": 141_107_412_992}},
        }
        facts = _ask(hub.url, ModelSpec(uri="hf://acme/big"))
    assert facts.shape is not None
    assert bytes_per_token(facts.shape, "bfloat16") == 327_680
    assert (facts.weights_bytes, facts.max_length_tokens, facts.fault) == (141_107_412_992, 131072, "")
    assert facts.widths == ModelWidths(128_256, 8192, 28_672)


def test_the_revision_that_the_spec_names_is_asked_for() -> None:
    with _hub() as hub:
        hub.files = {
            "/acme/big/resolve/v2/config.json": LLAMA_70B,
            "/acme/big/resolve/v2/model.safetensors": {"weights": 1},
        }
        facts = _ask(hub.url, ModelSpec(uri="hf://acme/big", revision="v2"))
    assert facts.shape is not None
    assert facts.weights_bytes == len(json.dumps({"weights": 1}))


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (None, "answers 404"),
        ({"num_hidden_layers": 2}, "num_attention_heads"),
        ([1], "not an object"),
    ],
)
def test_what_is_not_found_or_not_understood_is_a_fault_in_words(config: Any, fault: str) -> None:
    with _hub() as hub:
        hub.files = {} if config is None else {"/acme/big/resolve/main/config.json": config}
        facts = _ask(hub.url, ModelSpec(uri="hf://acme/big"))
    assert facts.shape is None
    assert fault in facts.fault


def test_a_hub_that_is_not_there_is_a_fault() -> None:
    facts = _ask("http://127.0.0.1:1", ModelSpec(uri="hf://acme/big"))
    assert "wasn't reached" in facts.fault


def test_without_a_hub_nothing_is_looked_up() -> None:
    assert "no hub is asked" in _ask("", ModelSpec(uri="hf://acme/big")).fault


@pytest.mark.parametrize("uri", ["pvc://claim/model", "s3://bucket/model", "file:///models/x", "package://llm-x"])
def test_other_models_are_known_once_a_replica_has_loaded_them(uri: str) -> None:
    assert "once a replica has loaded it" in _ask("", ModelSpec(uri=uri)).fault


def test_many_services_of_one_model_ask_once_and_each_is_called() -> None:
    async def body(url: str) -> tuple[set[ServiceKey], int]:
        called: set[ServiceKey] = set()
        all_called = asyncio.Event()
        keys = {ServiceKey("prod", f"s{index}", f"uid-{index}") for index in range(20)}

        def on_known(key: ServiceKey) -> None:
            called.add(key)
            if called == keys:
                all_called.set()

        book = ModelFactsBook(url, on_known)
        try:
            for key in keys:
                assert isinstance(book.facts(ModelSpec(uri="hf://acme/big"), key), Pending)
            async with asyncio.timeout(15):
                await all_called.wait()
        finally:
            await book.close()
        return called, len(keys)

    with _hub() as hub:
        hub.files = {"/acme/big/resolve/main/config.json": LLAMA_70B}
        called, number = asyncio.run(body(hub.url))
        assert len(called) == number
        assert hub.asked.count("/acme/big/resolve/main/config.json") == 1


def test_a_fault_is_looked_up_again_after_a_while_and_shown_until_then() -> None:
    async def body(hub: _Hub) -> None:
        now, calls = [0.0], asyncio.Queue[ServiceKey]()
        book = ModelFactsBook(hub.url, calls.put_nowait, clock=lambda: now[0])
        model = ModelSpec(uri="hf://acme/big")
        try:
            assert isinstance(book.facts(model, KEY), Pending)
            await asyncio.wait_for(calls.get(), 10)
            hub.files = {"/acme/big/resolve/main/config.json": LLAMA_70B}
            now[0] = 299.0
            first = book.facts(model, KEY)
            assert isinstance(first, ModelFacts) and first.fault
            now[0] = 301.0
            assert book.facts(model, KEY) == first
            await asyncio.wait_for(calls.get(), 10)
            later = book.facts(model, KEY)
            assert isinstance(later, ModelFacts) and later.shape is not None
        finally:
            await book.close()

    with _hub() as hub:
        asyncio.run(body(hub))


def test_a_hub_that_hangs_ends_as_a_fault_and_holds_nobody_up() -> None:
    with _hub() as hub:
        hub.hold = threading.Event()

        async def body() -> None:
            known, model = asyncio.Event(), ModelSpec(uri="hf://acme/big")
            book = ModelFactsBook(hub.url, lambda key: known.set())
            try:
                # The hub gives its answer only after the end of this function.
                assert isinstance(book.facts(model, KEY), Pending)
                await asyncio.wait_for(known.wait(), _HOLD_SECONDS)
                found = book.facts(model, KEY)
                assert isinstance(found, ModelFacts) and "wasn't reached: ReadTimeout" in found.fault
            finally:
                await book.close()

        asyncio.run(body())
        hub.hold.set()


def test_latent_attention_is_counted_expanded() -> None:
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    assert shape_of(config).layers == (LayerShape(16, 192, 128),) * 2


@pytest.mark.parametrize(
    ("config", "widths"),
    [
        ({"vocab_size": 9, "hidden_size": 4, "intermediate_size": 7}, ModelWidths(9, 4, 7)),
        ({"vocab_size": 9, "hidden_size": 4}, ModelWidths(9, 4, 16)),
        ({"vocab_size": 9, "hidden_size": 4, "intermediate_size": [7, 12]}, ModelWidths(9, 4, 12)),
        ({"text_config": {"vocab_size": 9, "hidden_size": 4, "intermediate_size": 7}}, ModelWidths(9, 4, 7)),
        ({"hidden_size": 4, "intermediate_size": 7}, None),
        ({"vocab_size": 9, "hidden_size": "4"}, None),
    ],
)
def test_the_widths_of_a_step_are_read_where_they_are_said(config: Any, widths: ModelWidths | None) -> None:
    assert widths_of(config) == widths


def test_a_text_part_of_a_larger_model_is_what_counts() -> None:
    assert len(shape_of({"text_config": LLAMA_70B, "num_hidden_layers": 1}).layers) == 80
    assert max_length_of({"text_config": LLAMA_70B}) == 131072


@pytest.mark.parametrize("value", [None, 0, -3, "8", 1.5])
def test_a_size_that_is_no_positive_number_is_named(value: Any) -> None:
    with pytest.raises(UnknownShape, match="num_hidden_layers"):
        shape_of({**LLAMA_70B, "num_hidden_layers": value})
