"""Cases A02, A11 and A13 on one set of kernels: scheduler and executor in this process, step by step, so that every
path can be tried and the books are checked after each step."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_kernels.choice import Kernels
from pagefleet_runtime.scheduler import Scheduler
from pagefleet_runtime.snapshot import EngineSnapshot
from tests.runtime.builders import HASH_KEY, some_request, some_settings, step_limit
from tests.runtime.cases.reference import Reference
from tests.runtime.cases.rig import BLOCK, some_ids
from tests.runtime.tiny_models import tiny_executor
from tests.runtime.tiny_tokenizer import EOS_ID

# What a partly equal block must have in common to be worth a copy of its page.
_LEAST_PART = BLOCK // 4
_HEAD = some_ids("a11", 24)


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    ended: bool = False


class KernelEngine:
    """Greedy requests on a tiny model whose pool begins as NaN."""

    def __init__(self, directory: Path, kernels: Kernels, num_blocks: int, hash_key: bytes = HASH_KEY) -> None:
        self._executor = tiny_executor(directory, num_blocks, BLOCK, kernels=kernels)
        settings = some_settings(
            num_blocks=num_blocks, block_size=BLOCK, max_length_tokens=512, max_queue=1000, eos_token_ids=(EOS_ID,)
        )
        self._scheduler = Scheduler(settings, hash_key)
        self._num_steps = 0
        self.answers: dict[tuple[str, int], Answer] = {}

    def submit(self, name: str, prompt: Sequence[int], max_tokens: int, num_choices: int = 1) -> None:
        self.answers |= {(name, choice): Answer() for choice in range(num_choices)}
        self._scheduler.submit(some_request(name, tuple(prompt), max_tokens, num_choices=num_choices), 0.0)

    def leave(self, name: str) -> None:
        self._scheduler.abort(name)

    def step(self, max_tokens: int) -> None:
        plan = self._scheduler.plan(float(self._num_steps), step_limit(max_tokens))
        if plan is None:
            return
        result = self._executor.execute(plan)
        assert not result.failures, result.failures
        for output in self._scheduler.commit(plan, result, float(self._num_steps)):
            answer = self.answers[output.request_id, output.choice_index]
            assert output.token_id is not None and not answer.ended
            answer.ids.append(output.token_id)
            answer.cached = max(answer.cached, output.cached_tokens)
            answer.ended = output.finish_reason is not None
        assert self._scheduler.check() == ()
        self._num_steps += 1

    def run(self, max_tokens: int) -> None:
        while self._scheduler.has_work():
            self.step(max_tokens)

    def complete(self, name: str, prompt: Sequence[int], max_tokens: int) -> Answer:
        self.submit(name, prompt, max_tokens)
        self.run(20)
        return self.answers[name, 0]

    def snapshot(self) -> EngineSnapshot:
        return self._scheduler.snapshot(float(self._num_steps))


def check_a02(engine: KernelEngine, reference: Reference, length: int, max_tokens: int) -> None:
    """A prompt around a block's edge, three times in turn and three times at once."""
    prompt = some_ids(f"a02 {length}", length)
    answers = [engine.complete(f"{length}, turn {turn}", prompt, max_tokens) for turn in range(3)]
    for name in range(3):
        engine.submit(f"{length}, at once {name}", prompt, max_tokens)
    engine.run(20)
    answers += [engine.answers[f"{length}, at once {name}", 0] for name in range(3)]
    reference.check_greedy(prompt, answers[0].ids)
    assert all(answer.ids == answers[0].ids and len(answer.ids) == max_tokens for answer in answers)
    part = (length - 1) % BLOCK
    reused = length - 1 if part >= _LEAST_PART else length - 1 - part
    assert [answer.cached for answer in answers] == [0, *[reused] * 5]


def check_a11(engine: KernelEngine, reference: Reference, seed: int, count: int) -> None:
    """Requests with a common head that come and leave while the pool is too small for them."""
    draw = random.Random(seed)
    prompts, leaving, lengths = {}, dict[str, int](), {}
    for index in range(count):
        name = f"{index}"
        prompts[name] = [*_HEAD, *(draw.randrange(256) for _ in range(draw.randint(1, 40)))]
        lengths[name] = draw.randint(8, 48)
        engine.submit(name, prompts[name], lengths[name], 2 if draw.random() < 0.1 else 1)
        if draw.random() < 0.2:
            leaving[name] = draw.randint(0, 30)
        for _ in range(draw.randint(0, 4)):
            _step_and_leave(engine, leaving)
    while leaving:
        _step_and_leave(engine, leaving)
    engine.run(64)
    answered = {key: answer for key, answer in engine.answers.items() if answer.ended}
    for (name, _), answer in answered.items():
        assert len(answer.ids) == lengths[name]
        reference.check_greedy(prompts[name], answer.ids)
    assert len(answered) >= count * 0.7
    snapshot = engine.snapshot()
    # It was under pressure, or it proved nothing.
    assert snapshot.evicted_blocks > 0
    assert snapshot.blocks_free + snapshot.blocks_cached == snapshot.blocks_total


def _step_and_leave(engine: KernelEngine, leaving: dict[str, int]) -> None:
    engine.step(64)
    for name, steps in list(leaving.items()):
        if steps:
            leaving[name] = steps - 1
        else:
            engine.leave(name)
            del leaving[name]


def check_a13(engine: KernelEngine, reference: Reference, max_tokens: int) -> None:
    """Equal chunks behind different beginnings."""
    x, y, z = (some_ids(f"a13 {name}", BLOCK) for name in "XYZ")
    answers = []
    for index, prompt in enumerate((x + z, y + z, z, x + z)):
        answers.append(engine.complete(f"{index}", prompt, max_tokens))
        reference.check_greedy(prompt, answers[-1].ids)
    assert answers[0].ids == answers[3].ids
    assert [answer.cached for answer in answers] == [0, 0, 0, 2 * BLOCK - 1]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One of the checks above, with its arguments, on a fresh engine."""

    check: Callable[..., None]
    arguments: tuple[int, ...]
    num_blocks: int = 200
    hash_key: bytes = HASH_KEY

    def __str__(self) -> str:
        return "-".join((self.check.__name__.removeprefix("check_"), *map(str, self.arguments)))

    def run(self, directory: Path, kernels: Kernels, reference: Reference) -> None:
        self.check(KernelEngine(directory, kernels, self.num_blocks, self.hash_key), reference, *self.arguments)


@dataclass(frozen=True, slots=True)
class InterpretedCase:
    """What a child process needs to run a case."""

    case: KernelCase
    directory: Path
    load: Callable[[Path], Kernels]


def run_interpreted(job: InterpretedCase) -> None:
    job.case.run(job.directory, job.load(job.directory), Reference.load(job.directory))
