"""An engine link whose engine is the test: it sees what the client sent and answers what it likes."""

import asyncio

from pagefleet_contract.engine import ServingSettings
from pagefleet_runtime.engine_client import EngineClient
from pagefleet_runtime.engine_link import Deliver, Lost
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.protocol import (
    Accepted,
    EngineInfo,
    FromEngine,
    Loaded,
    StepOutput,
    Submit,
    ToEngine,
    TokenOutput,
)
from pagefleet_runtime.request import GenerationRequest, Grammar, SamplingParams
from pagefleet_runtime.snapshot import EngineSnapshot

INFO = EngineInfo(
    model_directory="/nowhere",
    model_type="toy",
    dtype="float32",
    kv_dtype="float32",
    block_size=4,
    num_blocks=16,
    bytes_per_block=64,
    max_length_tokens=64,
    allowed_length_tokens=64,
    vocab_size=32,
    eos_token_ids=(1,),
    step_milliseconds=100,
    startup_table=(("model", "toy"),),
)


class Clock:
    """Time that stands still until the test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class ScriptedLink:
    def __init__(self) -> None:
        self.sent: list[ToEngine] = []

    def start(self, deliver: Deliver, lost: Lost) -> None:
        self.deliver = deliver
        self.lose = lost

    def send(self, message: ToEngine) -> None:
        self.sent.append(message)

    def stop(self) -> None:
        pass


def request(request_id: str, num_choices: int = 1, grammar: Grammar | None = None) -> GenerationRequest:
    return GenerationRequest(request_id, (5, 6), SamplingParams(max_tokens=8, grammar=grammar), num_choices)


def token(request_id: str, token_id: int, choice_index: int = 0, finish_reason: str | None = None) -> TokenOutput:
    return TokenOutput(request_id, choice_index, token_id, finish_reason)


class Scene:
    """A client on a scripted link, inside a running loop."""

    def __init__(self, settings: ServingSettings | None = None) -> None:
        self.link = ScriptedLink()
        self.clock = Clock()
        self.steps = 0
        self.client = EngineClient(self.link, settings or ServingSettings(), RequestFigures(), self.clock)
        self.client.start()

    async def engine_says(self, *messages: FromEngine) -> None:
        for message in messages:
            self.link.deliver(message)
        await settle()

    async def step(self, *outputs: TokenOutput, running: int = 0, waiting: int = 0) -> None:
        self.steps += 1
        await self.snapshot(*outputs, running=running, waiting=waiting)

    async def snapshot(self, *outputs: TokenOutput, running: int = 0, waiting: int = 0) -> None:
        """Figures without a step: what the engine tells after an abort."""
        await self.engine_says(StepOutput(outputs, EngineSnapshot(steps=self.steps, running=running, waiting=waiting)))

    async def become_ready(self) -> None:
        await self.engine_says(Loaded(INFO))
        (warm_up,) = [message.request for message in self.link.sent if isinstance(message, Submit)]
        await self.engine_says(Accepted(warm_up.request_id))
        await self.step(token(warm_up.request_id, 7, finish_reason="length"))
        self.link.sent.clear()


async def settle() -> None:
    """Let the loop run what is due: callbacks from other threads, and the tasks that they woke."""
    for _ in range(6):
        await asyncio.sleep(0)
