"""A streaming completions client on asyncio streams alone, so that measuring takes as little of the two cores as
possible. It knows one endpoint and keeps the time of every token."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.bench.workloads import BenchRequest


@dataclass(slots=True)
class Trace:
    """When things happened to one request, in seconds of time.perf_counter()."""

    sent: float
    tokens: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    completion_tokens: int | None = None  # as the server counted them, where events don't stand for single tokens
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) if self.completion_tokens is None else self.completion_tokens

    @property
    def ttft_seconds(self) -> float:
        return self.tokens[0] - self.sent

    @property
    def gaps_seconds(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`each_token`: ask for logprobs, so that each token has its event even where its text is empty or held back. That
    costs our server a softmax a token, so a comparison with others goes without: events of text then stand for tokens,
    and the server's usage counts them."""

    host: str
    port: int
    model: str
    each_token: bool = True

    @classmethod
    def of(cls, url: str, model: str) -> "Endpoint":
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"{url} has no host and port; expected http://HOST:PORT")
        return cls(parts.hostname, parts.port, model)


def _request_bytes(endpoint: Endpoint, request: BenchRequest) -> bytes:
    body = json.dumps(
        {
            "model": endpoint.model,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"logprobs": 0} if endpoint.each_token else {}),
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {endpoint.host}:{endpoint.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def complete(endpoint: Endpoint, request: BenchRequest) -> Trace:
    """Send one request and follow its stream to the end. An HTTP error or an error event is kept in the trace."""
    await asyncio.sleep(request.delay_seconds)
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=2**22)
    trace = Trace(sent=time.perf_counter())
    try:
        writer.write(_request_bytes(endpoint, request))
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            trace.error = (status + await reader.read()).decode(errors="replace")
            return trace
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            note_event(trace, json.loads(line[6:]), time.perf_counter(), each_token=endpoint.each_token)
        if trace.error is None and trace.num_tokens != request.num_output_tokens:
            trace.error = f"{trace.num_tokens} tokens came; {request.num_output_tokens} were asked"
        return trace
    finally:
        writer.close()


def note_event(trace: Trace, event: dict[str, Any], now: float, *, each_token: bool) -> None:
    """Keep what a stream's event says."""
    if "error" in event:
        trace.error = str(event["error"])
        return
    for choice in event["choices"]:
        if each_token:
            trace.tokens += [now] * len((choice.get("logprobs") or {"tokens": ()})["tokens"])
        elif choice["text"]:
            trace.tokens.append(now)
    if usage := event.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        trace.num_cached_tokens = details.get("cached_tokens") or 0
        if not each_token:
            trace.completion_tokens = usage["completion_tokens"]


async def run_all(endpoint: Endpoint, requests: Sequence[BenchRequest]) -> list[Trace]:
    return list(await asyncio.gather(*(complete(endpoint, request) for request in requests)))


def run_workload(endpoint: Endpoint, requests: Sequence[BenchRequest]) -> list[Trace]:
    """Run the requests at once (each after its own delay). Raises RuntimeError if one of them failed."""
    traces = asyncio.run(run_all(endpoint, requests))
    for trace in traces:
        if trace.error is not None:
            raise RuntimeError(f"a request failed, so the run measures nothing: {trace.error}")
    return traces
