"""Steps of a scheduler as lines of a table, with answers that no model gave."""

from collections.abc import Sequence

import pytest

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.plan import SampledToken, StepPlan, StepResult
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.scheduler import Scheduler
from tests.runtime.builders import some_request, step_limit

Line = tuple[str, int, int, int]  # request, choice, first position, tokens


def lines(plan: StepPlan | None) -> list[Line]:
    assert plan is not None
    return [(r.key.request_id, r.key.choice_index, r.start_position, len(r.token_ids)) for r in plan.rows]


def answer(plan: StepPlan, tokens: Sequence[int] = (), finished: bool = False) -> StepResult:
    """Token 7 for every sample, or the given ones in order."""
    samples = [sample for row in plan.rows for sample in row.samples]
    drawn = [*tokens, *[7] * (len(samples) - len(tokens))]
    return StepResult(
        plan.epoch,
        tuple(SampledToken(s.key, token, grammar_finished=finished) for s, token in zip(samples, drawn, strict=True)),
    )


def step(scheduler: Scheduler, max_tokens: int | None = None, tokens: Sequence[int] = ()) -> list[Line]:
    plan = scheduler.plan(0.0, step_limit(max_tokens))
    assert plan is not None
    scheduler.commit(plan, answer(plan, tokens), 0.0)
    assert scheduler.check() == ()
    return lines(plan)


def finish(scheduler: Scheduler) -> list[TokenOutput]:
    outputs: list[TokenOutput] = []
    while scheduler.has_work():
        plan = scheduler.plan(0.0, step_limit())
        assert plan is not None
        outputs.extend(scheduler.commit(plan, answer(plan), 0.0))
    assert scheduler.check() == ()
    return outputs


def refusal(scheduler: Scheduler, request_id: str, prompt: range, max_tokens: int, **changes: object) -> Refusal:
    with pytest.raises(RequestRefused) as caught:
        scheduler.submit(some_request(request_id, prompt, max_tokens, **changes), 5.0)
    return caught.value.refusal
