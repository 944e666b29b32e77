"""One HTTP request's engine requests, merged into one sequence of text pieces. The three endpoints shape them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.engine_client import EngineClient, RequestStream
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.text.choice_text import ChoiceText, TextDelta
from pagefleet_runtime.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a choice's tokens become its text."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    continues_text: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """The engine requests of one HTTP request, one per prompt, each with as many choices as the others."""

    requests: tuple[GenerationRequest, ...]
    rules: TextRules

    @property
    def num_choices(self) -> int:
        return self.requests[0].num_choices

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of one choice; choices are counted through all prompts."""

    choice_index: int
    delta: TextDelta


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class _Clock:
    """When tokens came, for the figures."""

    arrival_seconds: float
    first_seen: bool = False
    last_token: dict[int, float] = field(default_factory=dict)

    def note(self, figures: RequestFigures, choice_index: int, now: float) -> None:
        if not self.first_seen:
            self.first_seen = True
            figures.observe_first_token(now - self.arrival_seconds)
        if choice_index in self.last_token:
            figures.observe_inter_token(now - self.last_token[choice_index])
        self.last_token[choice_index] = now


class Generation:
    """Runs a job: open it with `opened`, read `pieces` once."""

    def __init__(
        self,
        job: Job,
        streams: Sequence[RequestStream],
        client: EngineClient,
        tokenizer: Tokenizer,
        figures: RequestFigures,
    ) -> None:
        self.job = job
        self.prompt_logprobs: list[tuple[TokenLogprob, ...] | None] = [None for _ in streams]
        self._streams = streams
        self._client = client
        self._figures = figures
        self._clock = _Clock(job.requests[0].arrival_seconds)
        self._cached_tokens = [0 for _ in streams]
        rules = job.rules
        self._texts = [
            ChoiceText(tokenizer, rules.stops, include_stop=rules.include_stop, continues_text=rules.continues_text)
            for _ in range(len(streams) * job.num_choices)
        ]

    @property
    def usage(self) -> Usage:
        """What has been used so far; each prompt counts once, whatever the number of choices."""
        completion_tokens = sum(text.completion_tokens for text in self._texts)
        return Usage(self.job.prompt_tokens, completion_tokens, sum(self._cached_tokens))

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all choices as they come, until each has finished.

        Raises RequestRefused where the request timed out in the queue (before any piece) or the engine failed on it.
        """
        async with contextlib.aclosing(merged(self._streams)) as outputs:
            async for prompt_index, output in outputs:
                piece = self._take(prompt_index, output)
                if piece.delta:
                    yield piece
        usage = self.usage
        elapsed = time.monotonic() - self._clock.arrival_seconds
        self._figures.observe_request(elapsed, usage.prompt_tokens, usage.completion_tokens)

    def _take(self, prompt_index: int, output: TokenOutput) -> Piece:
        if output.finish_reason == "error":
            raise self._failure(output)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs[prompt_index] = output.prompt_logprobs
        self._cached_tokens[prompt_index] = max(self._cached_tokens[prompt_index], output.cached_tokens)
        choice_index = prompt_index * self.job.num_choices + output.choice_index
        if output.token_id is not None:
            self._clock.note(self._figures, choice_index, time.monotonic())
        delta = self._texts[choice_index].push(output)
        if delta.stop_string is not None:
            self._streams[prompt_index].stop_choice(output.choice_index)
        return Piece(choice_index, delta)

    def _failure(self, output: TokenOutput) -> RequestRefused:
        message = output.error or "the engine failed on this request"
        logger.warning("%s ends without an answer: %s", output.request_id, message)
        if self._client.state == "ready":
            return RequestRefused(Refusal(500, "generation_failed", message))
        return RequestRefused(Refusal(503, "engine_unavailable", message, retry_after_seconds=1))


@contextlib.asynccontextmanager
async def opened(
    job: Job, client: EngineClient, tokenizer: Tokenizer, figures: RequestFigures
) -> AsyncGenerator[Generation, None]:
    """Put the job into the engine's queue; leaving the context gives back what it still holds there.

    Raises RequestRefused where the engine refuses any of its requests; then none of them stays.
    """
    streams = await _open_all(client, job.requests)
    try:
        yield Generation(job, streams, client, tokenizer, figures)
    finally:
        for stream in streams:
            stream.close()


async def _open_all(client: EngineClient, requests: Sequence[GenerationRequest]) -> list[RequestStream]:
    opening = [asyncio.ensure_future(client.open(request)) for request in requests]
    try:
        return list(await asyncio.gather(*opening))
    except BaseException:
        for task in opening:
            task.cancel()
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(result, RequestStream):
                result.close()
        raise


async def merged(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, TokenOutput], None]:
    """Yield the outputs of several streams as they come, each with its stream's index."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    waiting = {asyncio.ensure_future(stream.__anext__()): index for index, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                index = waiting.pop(task)
                try:
                    output = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(streams[index].__anext__())] = index
                yield index, output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
