"""The real engine in its own process, without a server: requests in, tokens out."""

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.engine_link import ProcessLink
from pagefleet_runtime.protocol import EngineInfo, FromEngine, Loaded, LoadFailed, StepOutput, Submit
from pagefleet_runtime.request import GenerationRequest, SequenceKey
from pagefleet_runtime.snapshot import EngineSnapshot

# Two processes that import torch on a busy machine.
_LOAD_SECONDS = 150
_STEP_SECONDS = 60


@dataclass(frozen=True)
class Lost:
    why: str


class EngineRun:
    def __init__(self, link: ProcessLink, messages: "queue.SimpleQueue[FromEngine | Lost]") -> None:
        self._link = link
        self._messages = messages
        self.snapshot = EngineSnapshot()

    def wait_loaded(self) -> EngineInfo:
        while not isinstance(message := self._messages.get(timeout=_LOAD_SECONDS), Loaded):
            assert not isinstance(message, LoadFailed | Lost), message
        return message.info

    def submit(self, *requests: GenerationRequest) -> None:
        for request in requests:
            self._link.send(Submit(request))

    def tokens(self, *requests: GenerationRequest) -> Mapping[SequenceKey, tuple[int, ...]]:
        """Run the requests at the same time, and return what each of their choices said."""
        self.submit(*requests)
        said = {SequenceKey(r.request_id, choice): () for r in requests for choice in range(r.num_choices)}
        found: dict[SequenceKey, tuple[int, ...]] = dict(said)
        ended: set[SequenceKey] = set()
        while len(ended) < len(found):
            message = self._messages.get(timeout=_STEP_SECONDS)
            assert not isinstance(message, LoadFailed | Lost), message
            if not isinstance(message, StepOutput):
                continue
            self.snapshot = message.snapshot
            for output in message.outputs:
                key = SequenceKey(output.request_id, output.choice_index)
                assert output.error is None, output
                if output.token_id is not None:
                    found[key] += (output.token_id,)
                if output.finish_reason is not None:
                    ended.add(key)
        return found

    def wait_failed(self, seconds: float) -> str:
        """Return why the engine failed."""
        while not isinstance(message := self._messages.get(timeout=seconds), LoadFailed):
            assert not isinstance(message, Lost), message
        return message.message


def other_ranks() -> list[psutil.Process]:
    """Return the ranks that this process's engines have started; servers of other tests are its children, too."""
    started = [process for engine in psutil.Process().children() for process in engine.children()]
    return [process for process in started if "pagefleet_runtime.rank_process" in process.cmdline()]


@contextmanager
def engine_run(settings: Mapping[str, Any]) -> Iterator[EngineRun]:
    link = ProcessLink(EngineConfig.model_validate(settings))
    messages: queue.SimpleQueue[FromEngine | Lost] = queue.SimpleQueue()
    link.start(messages.put, lambda why: messages.put(Lost(why)))
    try:
        yield EngineRun(link, messages)
    finally:
        link.stop()
