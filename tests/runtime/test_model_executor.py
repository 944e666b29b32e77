"""The executor on a tiny model: what it gives equals a dense single request, under any schedule, with NaN wherever
nothing was written; a row that breaks fails alone."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.model_executor.executor import ModelExecutor
from pagefleet_runtime.plan import PageCopy, Row, SampleSpec, StepPlan, StepResult
from pagefleet_runtime.request import GenerationRequest, Grammar, SamplingParams, SequenceKey
from pagefleet_runtime.scheduler import Scheduler
from tests.runtime.builders import HASH_KEY, some_request, some_settings, step_limit
from tests.runtime.tiny_models import tiny_executor, tiny_llama_directory, tiny_model
from tests.runtime.tiny_tokenizer import EOS_ID

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPT = tuple(range(10, 31))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_directory(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Any:
    return tiny_model(directory)


@pytest.fixture
def executor(directory: Path) -> ModelExecutor:
    return tiny_executor(directory)


def dense_logits(oracle: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


def dense_ids(oracle: Any, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What generate() gives one request alone."""
    with torch.inference_mode():
        output = oracle.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tuple(output[0, len(prompt) :].tolist())


def row(
    name: str,
    ids: Sequence[int],
    start: int,
    table: Sequence[int],
    params: SamplingParams | None = GREEDY,
    output: Sequence[int] = (),
    **changes: Any,
) -> Row:
    key = SequenceKey(name, 0)
    samples = () if params is None else (SampleSpec(key, params, PROMPT, output),)
    return Row(key, tuple(ids), start, tuple(table), samples, **changes)


def run(executor: ModelExecutor, *rows: Row, copies: tuple[PageCopy, ...] = ()) -> StepResult:
    return executor.execute(StepPlan(7, copies, rows))


def test_a_prompt_in_chunks_gives_the_first_token_of_generate(executor: ModelExecutor, oracle: Any) -> None:
    run(executor, row("a", PROMPT[:9], 0, [5, 2, 9], None))
    run(executor, row("a", PROMPT[9:10], 9, [5, 2, 9], None))
    result = run(executor, row("a", PROMPT[10:], 10, [5, 2, 9, 30, 1, 8]))

    assert (result.epoch, result.failures) == (7, ())
    assert result.sampled[0].token_id == dense_ids(oracle, PROMPT, 1)[0]
    assert result.duration_seconds > 0


def test_results_follow_their_keys_however_rows_are_packed(executor: ModelExecutor, oracle: Any) -> None:
    run(executor, row("decode", PROMPT[:12], 0, [0, 1, 2], None))

    result = run(
        executor,
        row("long", PROMPT[3:], 0, range(10, 16)),
        row("decode", PROMPT[12:13], 12, [0, 1, 2, 3]),
        row("silent", PROMPT[:5], 0, [20, 21], None),
        row("short", PROMPT[:2], 0, [25]),
    )

    expected = {"long": PROMPT[3:], "decode": PROMPT[:13], "short": PROMPT[:2]}
    given = {token.key.request_id: token.token_id for token in result.sampled}
    assert given == {name: dense_ids(oracle, prompt, 1)[0] for name, prompt in expected.items()}


def test_copies_are_made_before_anything_is_written(executor: ModelExecutor, oracle: Any) -> None:
    run(executor, row("a", PROMPT[:6], 0, [3, 4], None))

    result = run(
        executor,
        row("a", PROMPT[6:7], 6, [3, 4]),
        row("b", (99,), 6, [3, 11]),
        copies=(PageCopy(4, 11),),
    )

    given = {token.key.request_id: token.token_id for token in result.sampled}
    assert given["a"] == dense_ids(oracle, PROMPT[:7], 1)[0]
    assert given["b"] == dense_ids(oracle, (*PROMPT[:6], 99), 1)[0]


def test_several_choices_share_one_row_of_logits(executor: ModelExecutor) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.5, seed=5)
    specs = tuple(SampleSpec(SequenceKey("a", choice), params, PROMPT, ()) for choice in range(4))

    result = run(executor, Row(SequenceKey("a", 0), PROMPT, 0, tuple(range(6)), specs))

    assert [token.key.choice_index for token in result.sampled] == [0, 1, 2, 3]
    assert len({token.token_id for token in result.sampled}) > 1


def test_prompt_logprobs_are_those_of_the_dense_model(executor: ModelExecutor, oracle: Any) -> None:
    prompt = tuple((7 * i) % 250 for i in range(100))
    table = tuple(range(25))
    first = run(executor, row("a", prompt[:90], 0, table[:23], None, prompt_logprobs=2, next_prompt_ids=prompt[1:91]))
    second = run(executor, row("a", prompt[90:], 90, table, prompt_logprobs=2, next_prompt_ids=prompt[91:]))

    expected = torch.log_softmax(dense_logits(oracle, prompt), dim=-1)
    given = [entry for result in (first, second) for _, entries in result.prompt_logprobs for entry in entries]
    assert [entry.token_id for entry in given] == list(prompt[1:])
    for place, entry in enumerate(given):
        assert entry.logprob == pytest.approx(float(expected[place, prompt[place + 1]]), abs=1e-4)
        assert [i for i, _ in entry.top] == expected[place].topk(2).indices.tolist()
    assert second.sampled[0].token_id == int(expected[-1].argmax())


def poison(executor: ModelExecutor, block: int) -> None:
    for layer in range(executor.cache.num_layers):
        for pages in executor.cache.pages(layer):
            pages[block] = float("nan")


def test_a_row_whose_cache_is_broken_fails_alone(executor: ModelExecutor, oracle: Any) -> None:
    run(executor, row("bad", PROMPT[:8], 0, [0, 1], None), row("good", PROMPT[:8], 0, [2, 3], None))
    poison(executor, 1)

    result = run(
        executor,
        row("bad", PROMPT[8:9], 8, [0, 1, 4]),
        row("good", PROMPT[8:9], 8, [2, 3, 5]),
        row("new", (9,), 0, [6]),
    )

    assert [failure.key.request_id for failure in result.failures] == ["bad"]
    assert {token.key.request_id for token in result.sampled} == {"good", "new"}


def test_a_row_that_stops_the_forward_fails_alone_and_copies_are_made_once(
    executor: ModelExecutor, oracle: Any
) -> None:
    run(executor, row("a", PROMPT[:6], 0, [3, 4], None))
    unknown_token = 10_000

    result = run(
        executor,
        row("bad", (unknown_token,), 0, [20]),
        row("a", PROMPT[6:7], 6, [3, 11]),
        copies=(PageCopy(4, 11),),
    )

    assert [failure.key.request_id for failure in result.failures] == ["bad"]
    assert "forward pass failed" in result.failures[0].message
    assert result.sampled[0].token_id == dense_ids(oracle, PROMPT[:7], 1)[0]


def test_an_empty_plan_gives_an_empty_result(executor: ModelExecutor) -> None:
    assert run(executor).sampled == ()


DIGITS = SamplingParams(max_tokens=9, temperature=0.0, grammar=Grammar("regex", "[0-9]{3}"))


def grammar_request(params: SamplingParams) -> GenerationRequest:
    return GenerationRequest("g", PROMPT, params)


def test_a_grammar_holds_from_the_first_token_to_its_end(executor: ModelExecutor) -> None:
    executor.prepare(grammar_request(DIGITS))
    output: list[int] = []
    finished = False
    while not finished:
        start = len(PROMPT) + len(output) - 1 if output else 0
        ids = output[-1:] or PROMPT
        result = run(executor, row("g", ids, start, range(8), DIGITS, tuple(output)), row("free", (3,), 0, [20]))
        token = next(token for token in result.sampled if token.key.request_id == "g")
        output.append(token.token_id)
        finished = token.grammar_finished

    assert len(output) == 3 and all(chr(token) in "0123456789" for token in output)


def test_a_choice_that_comes_back_stands_where_its_output_ended(executor: ModelExecutor) -> None:
    executor.prepare(grammar_request(DIGITS))

    after_two = run(executor, row("g", (*PROMPT, ord("1"), ord("2")), 0, range(8), DIGITS, (ord("1"), ord("2"))))

    assert after_two.sampled[0].grammar_finished


def test_choices_of_one_grammar_go_their_own_ways(executor: ModelExecutor) -> None:
    params = SamplingParams(max_tokens=9, temperature=0.0, grammar=Grammar("regex", "a(b|c)d"))
    executor.prepare(grammar_request(params))
    rows = [
        Row(SequenceKey("g", choice), (*PROMPT, 97, letter), 0, tuple(range(8 * choice, 8 * choice + 8)), (spec,))
        for choice, letter in enumerate((98, 99))
        for spec in [SampleSpec(SequenceKey("g", choice), params, PROMPT, (97, letter))]
    ]

    result = run(executor, *rows)

    assert [(token.key.choice_index, token.token_id) for token in result.sampled] == [(0, 100), (1, 100)]


def test_a_forgotten_grammar_fails_its_request_alone(executor: ModelExecutor) -> None:
    executor.prepare(grammar_request(DIGITS))
    executor.forget("g")

    result = run(executor, row("g", PROMPT, 0, range(8), DIGITS), row("free", (3,), 0, [20]))

    assert [failure.key.request_id for failure in result.failures] == ["g"]
    assert [token.key.request_id for token in result.sampled] == ["free"]


def test_a_grammar_that_cannot_be_read_is_refused_at_once(executor: ModelExecutor) -> None:
    with pytest.raises(RequestRefused):
        executor.prepare(grammar_request(SamplingParams(max_tokens=1, grammar=Grammar("regex", "[0-9"))))


# --- any schedule


def some_workload(chance: random.Random, oracle: Any) -> Iterator[tuple[GenerationRequest, tuple[int, ...]]]:
    """Yield requests whose prompts often begin alike, each with what it must give."""
    base = tuple(chance.randrange(250) for _ in range(20))
    for index in range(6):
        shared = base[: chance.randrange(1, 20)]
        prompt = shared + tuple(chance.randrange(250) for _ in range(chance.randrange(0, 6)))
        count = chance.randrange(1, 10)
        request = some_request(str(index), prompt, count, num_choices=chance.choice((1, 1, 2, 3)))
        yield request, dense_ids(oracle, prompt, count)


def poison_new_pages(executor: ModelExecutor, plan: StepPlan) -> None:
    """What a row begins anew held another request's keys, or nothing; reading it must show."""
    copied = {copy.target for copy in plan.copies}
    for planned in plan.rows:
        for block in planned.block_table[-(-planned.start_position // executor.cache.block_size) :]:
            if block not in copied:
                poison(executor, block)


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_gives_what_each_request_gives_alone(directory: Path, oracle: Any, seed: int) -> None:
    chance = random.Random(seed)
    block_size, num_blocks = chance.choice(((1, 70), (2, 24), (4, 12), (16, 6)))
    executor = tiny_executor(directory, num_blocks, block_size)
    scheduler = Scheduler(
        some_settings(num_blocks=num_blocks, block_size=block_size, eos_token_ids=(EOS_ID,)), HASH_KEY
    )
    waiting = list(some_workload(chance, oracle))
    expected = {request.request_id: ids for request, ids in waiting}
    given: dict[tuple[str, int], list[int]] = {}
    steps = 0
    while waiting or scheduler.has_work():
        while waiting and (chance.random() < 0.4 or not scheduler.has_work()):
            scheduler.submit(waiting.pop()[0], 0.0)
        plan = scheduler.plan(float(steps), step_limit(chance.randrange(1, 24)))
        assert plan is not None
        poison_new_pages(executor, plan)
        result = executor.execute(plan)
        assert not result.failures
        for output in scheduler.commit(plan, result, float(steps)):
            assert output.token_id is not None
            given.setdefault((output.request_id, output.choice_index), []).append(output.token_id)
        steps += 1

    assert {key: tuple(ids) for key, ids in given.items()} == {key: expected[key[0]] for key in given}
    assert {name for name, _ in given} == set(expected)
