"""The server's end of the engine: requests out, tokens in. Lives in the server process's asyncio loop.

Nobody else talks to the engine. One message a step arrives and is handed out to the streams of its requests; a stream
that nobody reads grows, and holds up nobody.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Literal, Protocol, TypeVar

from pagefleet_contract.engine import ServingSettings
from pagefleet_contract.openai_error import CODE_DRAINING, CODE_ENGINE_FAILED, CODE_MODEL_LOADING, Refusal
from pagefleet_runtime.engine_link import EngineLink
from pagefleet_runtime.errors import ModelRefused, RequestRefused, RuntimeFault, invalid
from pagefleet_runtime.protocol import (
    Abort,
    Accepted,
    ChangePolicy,
    EngineInfo,
    FromEngine,
    Loaded,
    LoadFailed,
    LoadProgress,
    PolicyChange,
    PolicyChanged,
    Rejected,
    StepOutput,
    StopChoice,
    Submit,
)
from pagefleet_runtime.request import GenerationRequest, SamplingParams
from pagefleet_runtime.request_stream import RequestStream
from pagefleet_runtime.snapshot import EngineSnapshot

__all__ = ["EngineClient", "EngineState", "RequestStream"]

EngineState = Literal["loading", "ready", "draining", "failed"]

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


class QueueFigures(Protocol):
    def observe_queue(self, seconds: float) -> None: ...


class EngineClient:
    """Sends requests to the engine and hands its outputs out.

    Call `start()` inside the running loop first. `info` is None until the model has loaded; `snapshot` is the last one
    received; `load` is the last progress seen. `state` moves loading, ready, draining; failed from anywhere. Ready
    means that the engine has produced a token (a request of our own warms it up) and that all `preparations` are done.
    """

    def __init__(
        self,
        link: EngineLink,
        settings: ServingSettings,
        figures: QueueFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info: EngineInfo | None = None
        self.snapshot = EngineSnapshot()
        self.state: EngineState = "loading"
        self.load: LoadProgress | None = None
        self.failure: str | None = None  # why state is failed, in one line
        self.policy: PolicyChange | None = None  # the live settings in force, as the engine said last
        # Since when the engine owes a step; None while it owes nothing.
        self.waiting_since_seconds: float | None = None
        self._link = link
        self._settings = settings
        self._figures = figures
        self._clock = clock
        self._started_seconds = clock()
        self._streams: dict[str, RequestStream] = {}
        self._policy_changes: dict[int, asyncio.Future[PolicyChange]] = {}
        self._next_change_id = 0
        # What else must be done with the loaded model before requests are taken; ModelRefused ends the start.
        self.preparations: list[Callable[[EngineInfo], Awaitable[None]]] = []
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the engine; messages are handled in the running loop."""
        loop = asyncio.get_running_loop()

        def in_loop(handle: Callable[[Value], None]) -> Callable[[Value], None]:
            def hand_over(value: Value) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(handle, value)

            return hand_over

        self._link.start(in_loop(self._receive), in_loop(self._fail))

    def stop(self) -> None:
        """End the engine. Blocks for a few seconds at most."""
        self._link.stop()

    def check_accepts(self) -> None:
        """Raise RequestRefused (503: model_loading, draining or engine_failed, with retry-after) unless ready."""
        refusal = _REFUSALS.get(self.state)
        if refusal is not None:
            raise RequestRefused(refusal)

    async def open(self, request: GenerationRequest) -> RequestStream:
        """Submit a request and wait until it is in the engine's queue (its grammar has compiled).

        Raises RequestRefused: what check_accepts raises, 400 for what can't be, 429 for a full queue. Cancelling it
        takes the request back.
        """
        self.check_accepts()
        return await self._submit(request)

    async def change_policy(self, change: PolicyChange) -> PolicyChange:
        """Change live settings; return all that is in force now. An empty change only asks. Raises RequestRefused."""
        if self.info is None or self.state == "failed":
            self.check_accepts()
        change_id = self._ask_policy(change)
        answer: asyncio.Future[PolicyChange] = asyncio.get_running_loop().create_future()
        self._policy_changes[change_id] = answer
        try:
            async with asyncio.timeout(_POLICY_SECONDS):
                return await answer
        except TimeoutError:
            raise RequestRefused(_NO_POLICY_ANSWER) from None
        finally:
            del self._policy_changes[change_id]

    @property
    def max_length_tokens(self) -> int | None:
        """The longest request in tokens as things are: a smaller live budget cuts it. None while loading."""
        if self.info is None or self.policy is None or self.policy.kv_blocks is None:
            return None if self.info is None else self.info.max_length_tokens
        return min(self.info.max_length_tokens, self.policy.kv_blocks * self.info.block_size)

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet ended or closed."""
        return len(self._streams)

    @property
    def stalled_seconds(self) -> float:
        """How long work has waited without any step finishing; 0 while the engine owes nothing."""
        return 0.0 if self.waiting_since_seconds is None else max(0.0, self._clock() - self.waiting_since_seconds)

    @property
    def last_step_age_seconds(self) -> float:
        """Time since the last step finished, or since the start where there was none."""
        return max(0.0, self._clock() - max(self._started_seconds, self.snapshot.step_finished_seconds))

    def begin_drain(self) -> None:
        """Take no new requests. Those in flight go on; after drain_timeout_seconds they end with an error."""
        if self.state in ("loading", "ready"):
            self.state = "draining"
            self._spawn(self._end_drain())
            self._changed.set()

    def end_all(self, reason: str) -> None:
        """End what is in flight with an error, now."""
        for stream in list(self._streams.values()):
            self._link.send(Abort(stream.request.request_id))
            stream.end_with_error(reason)
            self._forget(stream)

    async def drained(self) -> None:
        """Return once nothing is in flight."""
        while self._streams:
            await self._next_change()

    async def loaded(self) -> None:
        """Return once state isn't loading any more."""
        while self.state == "loading":
            await self._next_change()

    async def failed(self) -> None:
        """Return once state is failed."""
        while self.state != "failed":
            await self._next_change()

    # --- used by RequestStream

    def choice_stopped(self, stream: RequestStream, choice_index: int) -> None:
        self._link.send(StopChoice(stream.request.request_id, choice_index))
        self._forget_finished(stream)

    def stream_closed(self, stream: RequestStream) -> None:
        if self._streams.get(stream.request.request_id) is stream:
            self._link.send(Abort(stream.request.request_id))
            self._forget(stream)

    # --- requests out

    async def _submit(self, request: GenerationRequest) -> RequestStream:
        if request.request_id in self._streams:
            raise invalid(f"request id {request.request_id!r} is already in use; send another", "request_id")
        stream = RequestStream(self, request)
        self._streams[request.request_id] = stream
        due = self._due_seconds(request)
        if self.waiting_since_seconds is None or due < self.waiting_since_seconds:
            self.waiting_since_seconds = due
        self._link.send(Submit(request))
        try:
            await stream.wait_accepted()
        except BaseException:
            stream.close()
            raise
        return stream

    def _due_seconds(self, request: GenerationRequest) -> float:
        """From when a request that was just submitted counts as waiting: compiling its grammar is no stall."""
        compiling = 0 if request.params.grammar is None else self._settings.grammar_timeout_seconds
        return self._clock() + compiling

    async def _become_ready(self, info: EngineInfo) -> None:
        try:
            await asyncio.gather(self._warm_up(info), *(prepare(info) for prepare in self.preparations))
        except RuntimeFault as fault:
            self._fail(str(fault))
            return
        except Exception:
            logger.exception("getting ready failed")
            self._fail("getting ready failed, a bug of ours; the log has the cause")
            return
        if self.state == "loading":
            self.state = "ready"
            self._changed.set()

    async def _warm_up(self, info: EngineInfo) -> None:
        token = info.eos_token_ids[0] if info.eos_token_ids else 0
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        request = GenerationRequest("pagefleet-warm-up", (token,), params, arrival_seconds=self._clock())
        async with await self._submit(request) as stream:
            errors = [output.error async for output in stream if output.finish_reason == "error"]
        if errors:
            raise ModelRefused(f"the warm-up request failed: {errors[0]}")
        self._ask_policy(PolicyChange(reset_prefix_cache=True))  # nobody else begins like the warm-up

    async def _end_drain(self) -> None:
        limit = self._settings.drain_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await self.drained()
        except TimeoutError:
            logger.warning("%d requests were still running after %d s of draining; they end now", self.in_flight, limit)
            self.end_all(f"the server is shutting down, and the request took longer than {limit} s to finish")

    # --- messages in

    def _receive(self, message: FromEngine) -> None:
        match message:
            case StepOutput():
                self._take_step(message)
            case Accepted():
                if stream := self._streams.get(message.request_id):
                    stream.accept()
            case Rejected():
                if stream := self._streams.get(message.request_id):
                    stream.refuse(message.refusal)
                    self._forget(stream)
            case PolicyChanged():
                self._answer_policy(message)
            case LoadProgress():
                self.load = message
            case Loaded():
                self.info = message.info
                self._ask_policy(PolicyChange())
                self._spawn(self._become_ready(message.info))
            case LoadFailed():
                self._fail(message.message)

    def _take_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            # An id that isn't there was closed here while the engine computed; what comes late is nobody's.
            if stream := self._streams.get(output.request_id):
                if output.queue_seconds is not None:
                    self._figures.observe_queue(output.queue_seconds)
                stream.push(output)
                self._forget_finished(stream)
        progressed = step.snapshot.steps > self.snapshot.steps
        self.snapshot = step.snapshot
        self.waiting_since_seconds = self._waiting_since(progressed)

    def _waiting_since(self, progressed: bool) -> float | None:
        """Return since when the engine owes a step, right after its snapshot came."""
        if self.snapshot.running or self.snapshot.waiting:
            return self._clock() if progressed else self.waiting_since_seconds
        # Not in the engine's queue yet: on the way there, or its grammar compiles.
        return min((self._due_seconds(stream.request) for stream in self._streams.values()), default=None)

    def _ask_policy(self, change: PolicyChange) -> int:
        self._next_change_id += 1
        self._link.send(ChangePolicy(self._next_change_id, change))
        return self._next_change_id

    def _answer_policy(self, message: PolicyChanged) -> None:
        self.policy = message.policy or self.policy
        answer = self._policy_changes.get(message.change_id)
        if answer is None or answer.done():
            return
        if message.policy is not None:
            answer.set_result(message.policy)
        else:
            answer.set_exception(RequestRefused(message.refusal or _REFUSALS["failed"]))

    def _fail(self, reason: str) -> None:
        if self.state == "failed":
            return
        self.state = "failed"
        self.failure = reason
        self.waiting_since_seconds = None
        self.end_all(f"the engine failed: {reason}")
        for answer in self._policy_changes.values():
            if not answer.done():
                answer.set_exception(RequestRefused(_REFUSALS["failed"]))
        self._changed.set()

    # --- bookkeeping

    def _forget_finished(self, stream: RequestStream) -> None:
        if stream.finished:
            self._forget(stream)

    def _forget(self, stream: RequestStream) -> None:
        if self._streams.pop(stream.request.request_id, None) is not None:
            self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# A change is applied between two steps; no step takes this long unless the engine hangs.
_POLICY_SECONDS = 30
_NO_POLICY_ANSWER = Refusal(
    503, "engine_busy", f"the engine didn't answer within {_POLICY_SECONDS} s; the change may still come into force"
)

# Another replica may answer at once; loading and restarting take longer.
_REFUSALS: dict[EngineState, Refusal] = {
    "loading": Refusal(503, CODE_MODEL_LOADING, "the model is still loading; try again soon", retry_after_seconds=5),
    "draining": Refusal(
        503, CODE_DRAINING, "this server is shutting down; send the request again", retry_after_seconds=1
    ),
    "failed": Refusal(503, CODE_ENGINE_FAILED, "the engine has failed and the server ends", retry_after_seconds=10),
}
