"""An engine that says what a test tells it to: the other end of an EngineLink, without a model or a process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.engine_link import Deliver, Lost
from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.protocol import (
    Abort,
    Accepted,
    EngineInfo,
    Loaded,
    Rejected,
    StepOutput,
    StopChoice,
    Submit,
    ToEngine,
    TokenOutput,
)
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.snapshot import EngineSnapshot
from tests.runtime.tiny_tokenizer import EOS_ID

Script = Callable[[GenerationRequest, int], Sequence[int]]


def says(text: str) -> Script:
    """Every choice is this text (a token is a byte), then the end token."""
    return lambda request, choice_index: list(text.encode())


HELLO = says("Hello")


def engine_info(
    directory: str, max_length_tokens: int = 512, vocab_size: int = 260, allowed_length_tokens: int | None = None
) -> EngineInfo:
    return EngineInfo(
        model_directory=directory,
        model_type="llama",
        dtype="float32",
        kv_dtype="float32",
        block_size=16,
        num_blocks=100,
        bytes_per_block=1024,
        max_length_tokens=max_length_tokens,
        allowed_length_tokens=allowed_length_tokens or max_length_tokens,
        vocab_size=vocab_size,
        eos_token_ids=(EOS_ID,),
        step_milliseconds=100,
        startup_table=(("model", "scripted"),),
    )


@dataclass
class _Running:
    request: GenerationRequest
    scripts: dict[int, list[int]]
    drawn: dict[int, int]
    begun: bool = False


@dataclass
class ScriptedEngine:
    """Answers each request by `script`, a step at once after another, or only when `step` is called (`by_hand`)."""

    info: EngineInfo | None
    script: Script = HELLO
    by_hand: bool = False
    cached_tokens: int = 0
    accepts: bool = True  # False: a request stays on its way to the queue, as while its grammar compiles
    refusal: Refusal | None = None
    fails_after: int | None = None  # tokens of choice 0, then it ends with an error
    requests: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    stopped: list[tuple[str, int]] = field(default_factory=list)
    _running: dict[str, _Running] = field(default_factory=dict)
    _snapshot: EngineSnapshot = field(default_factory=EngineSnapshot)

    def start(self, deliver: Deliver, lost: Lost) -> None:
        self._deliver = deliver
        self._lost = lost
        if self.info is not None:
            deliver(Loaded(self.info))

    def send(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message.request)
            case Abort():
                self.aborted.append(message.request_id)
                self._running.pop(message.request_id, None)
            case StopChoice():
                self.stopped.append((message.request_id, message.choice_index))

    def stop(self) -> None:
        pass

    @property
    def request(self) -> GenerationRequest:
        """The one request that came last."""
        return self.requests[-1]

    def reject(self, request_id: str, refusal: Refusal) -> None:
        """End a waiting request as a queue that took too long does."""
        self._running.pop(request_id)
        self._deliver(Rejected(request_id, refusal))

    def lose(self, reason: str) -> None:
        """End as an engine process that was killed."""
        self._lost(reason)

    def step(self) -> None:
        """Draw one token for every choice of every running request."""
        outputs = [output for running in list(self._running.values()) for output in self._outputs(running)]
        self._snapshot = replace(self._snapshot, steps=self._snapshot.steps + 1, running=len(self._running))
        self._deliver(StepOutput(tuple(outputs), self._snapshot))

    def _submit(self, request: GenerationRequest) -> None:
        warm_up = request.request_id == "pagefleet-warm-up"
        if not warm_up:
            self.requests.append(request)
            if self.refusal is not None:
                self._deliver(Rejected(request.request_id, self.refusal))
                return
            if not self.accepts:
                return
        self._deliver(Accepted(request.request_id))
        scripts = {index: list(self.script(request, index)) for index in range(request.num_choices)}
        self._running[request.request_id] = _Running(request, scripts, dict.fromkeys(scripts, 0))
        while not (self.by_hand and not warm_up) and request.request_id in self._running:
            self.step()

    def _outputs(self, running: _Running) -> list[TokenOutput]:
        outputs = [self._draw(running, index) for index in list(running.scripts)]
        if not running.begun:
            running.begun = True
            outputs[0] = replace(outputs[0], prompt_logprobs=_prompt_logprobs(running.request))
        for output in outputs:
            if output.finish_reason is not None:
                del running.scripts[output.choice_index]
        if not running.scripts:
            self._running.pop(running.request.request_id, None)
        return outputs

    def _draw(self, running: _Running, index: int) -> TokenOutput:
        request, drawn = running.request, running.drawn[index]
        if self.fails_after == drawn and index == 0 and request.request_id != "pagefleet-warm-up":
            return TokenOutput(request.request_id, index, None, "error", error="the logits are not numbers")
        running.drawn[index] += 1
        ended = drawn >= len(running.scripts[index])
        token_id = EOS_ID if ended else running.scripts[index][drawn]
        finish = "stop" if ended else "length" if drawn + 1 == request.params.max_tokens else None
        logprob = _logprob(token_id, request.params.top_logprobs)
        return TokenOutput(request.request_id, index, token_id, finish, logprob, self.cached_tokens, ends_text=ended)


def _logprob(token_id: int, num_top: int | None) -> TokenLogprob | None:
    if num_top is None:
        return None
    others = [other for other in range(21) if other != token_id]
    return TokenLogprob(token_id, -0.5, ((token_id, -0.5), *((other, -9999.0) for other in others))[:num_top])


def _prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprob, ...] | None:
    num_top = request.params.prompt_logprobs
    if num_top is None:
        return None
    entries = [_logprob(token_id, num_top) for token_id in request.prompt_ids[1:]]
    return tuple(entry for entry in entries if entry is not None)
