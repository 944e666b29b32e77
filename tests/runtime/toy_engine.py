"""The real engine loop in a thread, over the toy executor, with a test at the other end of its messages."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.engine import Engine, Inbox
from pagefleet_runtime.errors import invalid
from pagefleet_runtime.plan import StepPlan, StepResult
from pagefleet_runtime.protocol import EngineInfo, FromEngine, Shutdown, StepOutput, ToEngine, TokenOutput
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.step_cost import StepCost
from tests.runtime.builders import EOS, FLAT_COST
from tests.runtime.toy_executor import VOCABULARY, ToyExecutor

Message = TypeVar("Message")

TOY_INFO = EngineInfo(
    model_directory="/nowhere",
    model_type="toy",
    dtype="float32",
    kv_dtype="float32",
    block_size=4,
    num_blocks=32,
    bytes_per_block=64,
    max_length_tokens=64,
    allowed_length_tokens=64,
    vocab_size=VOCABULARY,
    eos_token_ids=(EOS,),
    step_milliseconds=100,
    startup_table=(("model", "toy"),),
)


@dataclass
class ToyModelExecutor:
    """The toy executor with what a test may do to it: hold steps and grammars, make steps fail."""

    toy: ToyExecutor = field(default_factory=lambda: ToyExecutor(TOY_INFO.num_blocks, TOY_INFO.block_size))
    go: threading.Event = field(default_factory=threading.Event)
    compiled: threading.Event = field(default_factory=threading.Event)
    failing_steps: int = 0
    prepared: list[str] = field(default_factory=list)
    forgotten: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def prepare(self, request: GenerationRequest) -> None:
        self.prepared.append(request.request_id)
        assert self.compiled.wait(10)
        if request.params.grammar is not None and request.params.grammar.text == "bad":
            raise invalid("this grammar is wrong", "response_format")

    def execute(self, plan: StepPlan) -> StepResult:
        assert self.go.wait(10)
        if self.failing_steps:
            self.failing_steps -= 1
            raise RuntimeError("the device is on fire")
        return self.toy.execute(plan)

    def forget(self, request_id: str) -> None:
        self.forgotten.put(request_id)


@dataclass
class ToyModel:
    executor: ToyModelExecutor = field(default_factory=ToyModelExecutor)
    info: EngineInfo = TOY_INFO
    step_cost: StepCost = FLAT_COST


class EngineAtWork:
    """An engine that runs in a thread. Steps and grammars go on unless a test holds them."""

    def __init__(self, config: EngineConfig) -> None:
        self.model = ToyModel()
        self.executor = self.model.executor
        self.inbox: Inbox = queue.SimpleQueue()
        self.posted: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
        self._error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(config,), daemon=True)
        self.executor.go.set()
        self.executor.compiled.set()

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self.inbox.put(message)

    def next(self, kind: type[Message]) -> Message:
        """Return the next message of this kind; what comes before it is skipped."""
        while True:
            message = self.posted.get(timeout=20)
            if isinstance(message, kind):
                return message

    def outputs_until_end(self, *request_ids: str) -> dict[str, list[TokenOutput]]:
        """Return each request's outputs until all (of one choice each) have finished."""
        outputs: dict[str, list[TokenOutput]] = {request_id: [] for request_id in request_ids}
        while not all(found and found[-1].finish_reason for found in outputs.values()):
            for output in self.next(StepOutput).outputs:
                outputs[output.request_id].append(output)
        return outputs

    def take_error(self) -> Exception | None:
        """Wait for the engine's end and return what it ended with. Left untaken, it fails the test."""
        self.thread.join(20)
        assert not self.thread.is_alive()
        error, self._error = self._error, None
        return error

    def _run(self, config: EngineConfig) -> None:
        try:
            Engine(config, self.model, self.inbox, self.posted.put).run()
        except Exception as error:
            self._error = error


def toy_config(**sections: Any) -> EngineConfig:
    return EngineConfig.model_validate({"model": {"uri": "toy"}, **sections})


@contextmanager
def engine_at_work(**sections: Any) -> Iterator[EngineAtWork]:
    engine = EngineAtWork(toy_config(**sections))
    engine.thread.start()
    try:
        yield engine
    finally:
        engine.executor.go.set()
        engine.executor.compiled.set()
        engine.send(Shutdown())
        if error := engine.take_error():
            raise error
