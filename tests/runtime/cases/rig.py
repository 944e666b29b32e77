"""A live server with what the cases need of it: prompts and answers as token ids, figures, live settings."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_contract.names import PATH_METRICS, PATH_POLICY, PATH_STATE
from tests import sse
from tests.runtime.cases.reference import Reference
from tests.runtime.live_server import LiveServer
from tests.runtime.tiny_tokenizer import CONTROL_TOKENS

MODEL = "tiny"
BLOCK = 16
OPERATOR = {"authorization": "Bearer boss"}

_CONTROL_IDS = {text: 256 + place for place, text in enumerate(CONTROL_TOKENS)}


def token_id(shown: str) -> int:
    """Return the id of a token as logprobs show it; the tiny tokenizer has one token a byte."""
    if shown in _CONTROL_IDS:
        return _CONTROL_IDS[shown]
    return int(shown.removeprefix("bytes:\\x"), 16) if shown.startswith("bytes:") else ord(shown)


def some_ids(seed: int | str, count: int) -> list[int]:
    """Return a prompt that nobody else begins like: ids of bytes, never control tokens."""
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(count)]


@dataclass(frozen=True)
class Answer:
    """One choice, with the usage of its request where that was told."""

    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    usage: dict[str, Any]

    @property
    def cached(self) -> int:
        cached: int = self.usage["prompt_tokens_details"]["cached_tokens"]
        return cached

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.usage["prompt_tokens"], self.usage["completion_tokens"], self.usage["total_tokens"]


def answers_of(body: dict[str, Any]) -> list[Answer]:
    """Return the choices of a whole answer."""
    return joined([body])


def joined(chunks: list[dict[str, Any]]) -> list[Answer]:
    """Return the choices of an answer that came in chunks."""
    usage: dict[str, Any] = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), {})
    by_index: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            by_index.setdefault(choice["index"], []).append(choice)
    return [_answer(parts, usage) for _, parts in sorted(by_index.items())]


def _answer(parts: list[dict[str, Any]], usage: dict[str, Any]) -> Answer:
    shown = [token for part in parts if part["logprobs"] for token in part["logprobs"]["tokens"]]
    reasons = [part["finish_reason"] for part in parts if part["finish_reason"]]
    assert len(reasons) <= 1, f"a choice ended {len(reasons)} times: {reasons}"
    text = "".join(part["text"] for part in parts)
    return Answer(tuple(token_id(token) for token in shown), text, reasons[0] if reasons else None, usage)


@dataclass(frozen=True)
class Rig:
    server: LiveServer
    http: httpx2.Client
    reference: Reference
    folder: Path  # of the model

    def body(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return a completion's body: greedy, to its full length, with the tokens shown; `fields` override."""
        kept = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens}
        return kept | {"temperature": 0, "ignore_eos": True, "logprobs": 0} | fields

    def post(self, body: dict[str, Any]) -> httpx2.Response:
        return self.http.post("/v1/completions", json=body)

    def choices(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> list[Answer]:
        response = self.post(self.body(prompt, max_tokens, **fields))
        assert response.status_code == 200, response.text
        return answers_of(response.json())

    def complete(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> Answer:
        (answer,) = self.choices(prompt, max_tokens, **fields)
        return answer

    def streamed(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> list[Answer]:
        """Return the choices of a stream that also tells its usage."""
        wanted = {"stream": True, "stream_options": {"include_usage": True}}
        response = self.post(self.body(prompt, max_tokens, **wanted, **fields))
        assert response.status_code == 200, response.text
        *chunks, last = sse.events([response.text])
        assert last == "[DONE]" and "[DONE]" not in chunks
        return joined([json.loads(chunk) for chunk in chunks])

    def check_greedy(self, prompt: list[int], answer: Answer) -> None:
        self.reference.check_greedy(prompt, answer.ids)

    # --- figures and live settings

    def snapshot(self) -> dict[str, Any]:
        """Return the engine's figures after its last step."""
        page = self.http.get(PATH_STATE, headers=OPERATOR)
        assert page.status_code == 200, page.text
        snapshot: dict[str, Any] = page.json()["snapshot"]
        return snapshot

    def figures(self) -> dict[tuple[str, str], float]:
        """Return what /metrics shows, by name and the value of the only label, if there is one."""
        found = {}
        for family in text_string_to_metric_families(self.http.get(PATH_METRICS).text):
            for sample in family.samples:
                if len(sample.labels) < 2:
                    found[sample.name, next(iter(sample.labels.values()), "")] = float(sample.value)
        return found

    def outcomes(self) -> dict[str, float]:
        """Return how many requests ended how."""
        return {label: value for (name, label), value in self.figures().items() if name == "pagefleet_requests_total"}

    @contextmanager
    def settings(self, **changes: int) -> Iterator[None]:
        """Put live settings in force for a while; names as the API has them."""
        with self.restoring(*changes):
            self.change(**changes)
            yield

    @contextmanager
    def restoring(self, *names: str) -> Iterator[None]:
        """Put live settings back, once no request is left, to what they are now."""
        old = self.http.get(PATH_POLICY, headers=OPERATOR).json()
        try:
            yield
        finally:
            self.server.wait_until(lambda: in_flight(self) == 0)
            self.change(**{name: old[name] for name in names})

    def change(self, **changes: int | bool) -> None:
        response = self.http.patch(PATH_POLICY, headers=OPERATOR, json=changes)
        assert response.status_code == 200, response.text


class StageMissed(Exception):
    """The engine ran past the stage before it was frozen; the round has to be tried again."""


def run_until(rig: Rig, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Let the frozen engine run for moments until its figures are so; leave it frozen and return them."""
    while True:
        snapshot = rig.snapshot()
        if holds(snapshot):
            return snapshot
        if in_flight(rig) == 0:
            raise StageMissed
        rig.server.engine.resume()
        rig.server.engine.suspend()


def at_once(rig: Rig, asked: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Return the answers of requests that the engine meets together, however late one of their threads began."""
    with ThreadPoolExecutor(len(asked)) as pool:
        with rig.server.frozen_engine():
            answers = [pool.submit(each) for each in asked]
            rig.server.wait_until(lambda: in_flight(rig) == len(asked))
        return [answer.result() for answer in answers]


def in_flight(rig: Rig) -> float:
    """Return how many requests the server waits for."""
    return rig.figures()["pagefleet_requests_in_flight", ""]
