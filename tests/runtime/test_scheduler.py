"""What a step holds, how choices end, what is shared: requests in, plans and outputs out."""

from typing import Any

import pytest

from pagefleet_runtime.plan import PageCopy, StepResult
from pagefleet_runtime.request import SequenceKey
from pagefleet_runtime.step_cost import StepCost
from tests.runtime.builders import EOS, some_request, some_scheduler, step_limit
from tests.runtime.stepping import answer, finish, lines, step

# --- what a step holds


def test_a_prompt_runs_in_one_step_and_samples_from_its_last_token() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(6)), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    (row,) = plan.rows
    assert row.token_ids == (0, 1, 2, 3, 4, 5)
    assert row.block_table == (0, 1)
    assert [sample.key for sample in row.samples] == [SequenceKey("a", 0)]


def test_decodes_go_first_and_the_rest_of_the_tokens_goes_to_prefill() -> None:
    scheduler = some_scheduler()
    for name in ("a", "b"):
        scheduler.submit(some_request(name, range(3)), 0.0)
    step(scheduler)
    scheduler.submit(some_request("c", range(20, 60)), 0.0)
    assert step(scheduler, 14) == [("a", 0, 3, 1), ("b", 0, 3, 1), ("c", 0, 0, 12)]
    assert step(scheduler, 14) == [("a", 0, 4, 1), ("b", 0, 4, 1), ("c", 0, 12, 12)]


def test_chunks_end_at_block_edges_until_the_prompt_ends() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(18)), 0.0)
    assert [step(scheduler, 7)[0] for _ in range(5)] == [
        ("a", 0, 0, 4),
        ("a", 0, 4, 4),
        ("a", 0, 8, 4),
        ("a", 0, 12, 6),
        ("a", 0, 18, 1),
    ]


def test_a_budget_below_a_block_still_moves_a_prompt_forward() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(9)), 0.0)
    rows = [step(scheduler, 3)[0] for _ in range(4)]
    assert rows == [("a", 0, 0, 3), ("a", 0, 3, 1), ("a", 0, 4, 3), ("a", 0, 7, 2)]


def test_one_block_of_prefill_goes_in_although_decodes_alone_exceed_the_time() -> None:
    scheduler = some_scheduler()
    for name in ("a", "b", "c"):
        scheduler.submit(some_request(name, range(3), 20), 0.0)
    step(scheduler)
    scheduler.submit(some_request("d", range(20, 40)), 0.0)
    slow = StepCost(1.0, 1.0, 0.0, 1.0, 0.0)
    plan = scheduler.plan(0.0, step_limit(None, 0.05, slow))
    assert lines(plan) == [("a", 0, 3, 1), ("b", 0, 3, 1), ("c", 0, 3, 1), ("d", 0, 0, 4)]


def test_a_step_that_is_slow_whatever_is_in_it_takes_prefill_worth_its_while() -> None:
    # 306 ms a step and 1 ms a token, where a step may take 100 ms: a third of what it takes anyway.
    cost = StepCost(0.306, 0.0, 0.0, 0.001, 0.0)
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(2, 202)), 0.0)
    plan = scheduler.plan(0.0, step_limit(seconds=0.1, cost=cost))
    assert plan is not None and plan.num_tokens == 100


def test_the_time_of_a_step_limits_its_prefill() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(100)), 0.0)
    plan = scheduler.plan(0.0, step_limit(None, 0.05, StepCost(0.01, 0.001, 0.0, 0.001, 0.0)))
    assert lines(plan) == [("a", 0, 0, 40)]


def test_nothing_to_do_is_no_plan() -> None:
    scheduler = some_scheduler()
    assert scheduler.plan(0.0, step_limit()) is None
    assert not scheduler.has_work()


# --- ends


@pytest.mark.parametrize(
    ("changes", "token", "reason", "ends_text"),
    [
        ({"ignore_eos": False}, EOS, "stop", True),
        ({"ignore_eos": True}, EOS, None, False),
        ({"stop_token_ids": (9,)}, 9, "stop", True),
        ({"max_tokens": 1}, 5, "length", False),
        ({"max_tokens": 1, "stop_token_ids": (5,)}, 5, "stop", True),
        ({}, 5, None, False),
    ],
)
def test_a_choice_ends_by_its_token(changes: dict[str, Any], token: int, reason: str | None, ends_text: bool) -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(3), **{"max_tokens": 4, **changes}), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    (output,) = scheduler.commit(plan, answer(plan, [token]), 0.0)
    assert (output.token_id, output.finish_reason, output.ends_text) == (token, reason, ends_text)
    assert scheduler.has_work() == (reason is None)


def test_a_finished_grammar_ends_a_choice_with_its_token_in_the_text() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(3)), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    (output,) = scheduler.commit(plan, answer(plan, finished=True), 0.0)
    assert (output.finish_reason, output.ends_text) == ("stop", False)


def test_no_tokens_asked_runs_the_prompt_and_draws_none() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(6), 0, prompt_logprobs=1), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    assert plan.rows[0].samples == ()
    assert plan.rows[0].next_prompt_ids == (1, 2, 3, 4, 5)
    (output,) = scheduler.commit(plan, StepResult(plan.epoch, (), (), ((SequenceKey("a", 0), ()),)), 0.0)
    assert (output.token_id, output.finish_reason, output.prompt_logprobs) == (None, "length", ())


def test_the_end_of_a_request_is_told_once() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(3), 1, num_choices=2), 0.0)
    scheduler.submit(some_request("b", range(3), 9), 0.0)
    step(scheduler)
    scheduler.abort("b")
    assert scheduler.take_ended_requests() == ("a", "b")
    assert scheduler.take_ended_requests() == ()
    assert scheduler.snapshot(0.0).outcomes == {"length": 1, "cancelled": 1}


# --- sharing and copying


def test_a_second_run_of_a_prompt_of_two_blocks_reuses_all_but_its_last_token() -> None:
    scheduler = some_scheduler(block_size=16)
    scheduler.submit(some_request("a", range(32), 2), 0.0)
    finish(scheduler)
    scheduler.submit(some_request("b", range(32), 2), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    assert lines(plan) == [("b", 0, 31, 1)]
    assert plan.copies == (PageCopy(1, plan.rows[0].block_table[1]),)
    (output,) = scheduler.commit(plan, answer(plan), 0.0)
    assert output.cached_tokens == 31


def test_blocks_become_findable_only_when_they_are_written() -> None:
    scheduler = some_scheduler(max_sequences=4)
    scheduler.submit(some_request("a", range(9), 2), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    scheduler.submit(some_request("b", range(9), 2), 0.0)
    assert scheduler.plan(0.0, step_limit()) is None
    assert plan is not None
    scheduler.commit(plan, answer(plan), 0.0)
    assert ("b", 0, 8, 1) in step(scheduler)


def test_equal_prompts_at_once_are_computed_once() -> None:
    scheduler = some_scheduler()
    for name in ("a", "b", "c"):
        scheduler.submit(some_request(name, range(20), 2), 0.0)
    assert step(scheduler, 8) == [("a", 0, 0, 8)]
    assert step(scheduler, 100) == [("a", 0, 8, 12)]
    assert sorted(step(scheduler, 100)) == [("a", 0, 20, 1), ("b", 0, 19, 1), ("c", 0, 19, 1)]


def test_whoever_waits_for_a_block_computes_it_when_its_leader_leaves() -> None:
    scheduler = some_scheduler()
    for name in ("a", "b"):
        scheduler.submit(some_request(name, range(20), 2), 0.0)
    step(scheduler, 8)
    scheduler.abort("a")
    assert step(scheduler, 100) == [("b", 0, 8, 12)]


def test_sharing_off_computes_everything() -> None:
    scheduler = some_scheduler(prefix_sharing_mode="Disabled")
    for name in ("a", "b"):
        scheduler.submit(some_request(name, range(8), 1), 0.0)
    assert step(scheduler) == [("a", 0, 0, 8), ("b", 0, 0, 8)]
    assert scheduler.snapshot(0.0).blocks_cached == 0


def test_tenants_do_not_see_each_others_blocks() -> None:
    scheduler = some_scheduler(prefix_sharing_mode="Tenant")
    for number, tenant in enumerate(("x", "y", "x")):
        scheduler.submit(some_request(f"r{number}", range(9), 1, tenant=tenant), 0.0)
        assert step(scheduler) == [(f"r{number}", 0, (0, 0, 8)[number], (9, 9, 1)[number])]


def test_wanted_prompt_logprobs_take_nothing_from_the_cache_but_give_to_it() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(9), 1, prompt_logprobs=0), 0.0)
    assert step(scheduler) == [("a", 0, 0, 9)]
    scheduler.submit(some_request("b", range(9), 1, prompt_logprobs=0), 0.0)
    assert step(scheduler) == [("b", 0, 0, 9)]
    scheduler.submit(some_request("c", range(9), 1), 0.0)
    assert step(scheduler) == [("c", 0, 8, 1)]


def test_choices_share_the_prompt_and_copy_its_last_page_on_the_first_write_but_one() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(6), 3, num_choices=3), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    assert [sample.key.choice_index for sample in plan.rows[0].samples] == [0, 1, 2]
    scheduler.commit(plan, answer(plan, [4, 5, 6]), 0.0)
    assert scheduler.snapshot(0.0).blocks_live == 2
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    assert [row.token_ids for row in plan.rows] == [(4,), (5,), (6,)]
    assert [row.block_table for row in plan.rows] == [(0, 2), (0, 3), (0, 1)]
    assert plan.copies == (PageCopy(1, 2), PageCopy(1, 3))
    assert scheduler.snapshot(0.0).copies_on_write == 2


def test_a_full_prompt_block_is_shared_by_choices_without_a_copy() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(8), 3, num_choices=2), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    assert plan.copies == ()
