"""Clients that use a service while something happens to it, and a tally of what they saw."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests import sse

_TIMEOUT = httpx2.Timeout(120, connect=10)


def wait_until_reachable(url: str, seconds: float = 60) -> None:
    """Return once a ready pod answers behind the address: a node learns of one a moment after the API server does."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            httpx2.get(f"{url}/health/ready", timeout=5).raise_for_status()
            return
        except (OSError, httpx2.HTTPError) as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"{url} not reachable within {seconds:g} s: {error}") from error
            time.sleep(0.05)


def completion(url: str, model: str, max_tokens: int = 8, headers: dict[str, str] | None = None) -> str:
    """Return the text of one completion. Raises for anything but 200."""
    body = {"model": model, "prompt": "one two three", "max_tokens": max_tokens}
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=_TIMEOUT, headers=headers)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def chat_body(model: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about paging."}]
    return {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **more}


@dataclass
class Tally:
    """What the clients saw; `faults` has a line for each request that did not end well."""

    ended: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, outcome: str, fault: str = "") -> None:
        with self.lock:
            self.ended[outcome] += 1
            if fault:
                self.faults.append(fault)

    @property
    def good(self) -> int:
        return self.ended["good"]


def stream_once(client: httpx2.Client, url: str, model: str, max_tokens: int) -> str:
    """Read one streamed chat answer of `max_tokens` to its end. Return "" where it ended well, else what was wrong."""
    body = chat_body(model, max_tokens, stream=True, ignore_eos=True)
    tokens, finish, done = 0, None, False
    try:
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                return f"{answer.status_code}: {answer.text[:300]}"
            for data in sse.events(answer.iter_text()):
                if data == "[DONE]":
                    done = True
                    break
                event = json.loads(data)
                if "error" in event:
                    return f"error event after {tokens} tokens: {event['error']}"
                choice = event["choices"][0]
                tokens += bool(choice["delta"].get("content"))
                finish = choice.get("finish_reason") or finish
    except Exception as error:  # whatever it is: a request that nobody counts is one that nobody misses
        return f"{type(error).__name__} after {tokens} tokens: {error}"
    return "" if done and finish in ("stop", "length") else f"ended after {tokens} tokens without an end: {finish}"


@dataclass
class Clients:
    """Threads that read streams, and what they saw."""

    tally: Tally
    threads: list[threading.Thread]

    def join(self, seconds: float = 150) -> None:
        """Wait for their ends. One that still reads after that time has a fault."""
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.tally.count("bad", f"{thread.name} still reads after {seconds:g} s")


def started_clients(
    url: str, model: str, clients: int, max_tokens: int, goes_on: Callable[[], bool] = lambda: False
) -> Clients:
    """Start clients that stream one answer each, and another one as long as it `goes_on`."""
    tally = Tally()

    def work() -> None:
        with httpx2.Client(timeout=_TIMEOUT) as client:
            while True:
                fault = stream_once(client, url, model, max_tokens)
                tally.count("bad" if fault else "good", fault)
                if not goes_on():
                    return

    # A client that hangs must not keep the tests' process from its end.
    threads = [threading.Thread(target=work, name=f"client-{index}", daemon=True) for index in range(clients)]
    for thread in threads:
        thread.start()
    return Clients(tally, threads)


@contextmanager
def streams(url: str, model: str, clients: int = 4, max_tokens: int = 40) -> Iterator[Tally]:
    """Run clients that stream one answer after the other until the block ends; each finishes the one that it has."""
    stop = threading.Event()
    started = started_clients(url, model, clients, max_tokens, goes_on=lambda: not stop.is_set())
    try:
        yield started.tally
    finally:
        stop.set()
        started.join()
