"""What happens when something runs short, leaves or fails, and when settings change live."""

from dataclasses import replace

import pytest

from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.plan import RowFailure, StepResult
from pagefleet_runtime.protocol import PolicyChange
from pagefleet_runtime.request import SequenceKey
from pagefleet_runtime.waiting_queue import MOST_OVERTAKEN
from tests.runtime.builders import some_request, some_scheduler, step_limit
from tests.runtime.stepping import answer, finish, refusal, step

# --- pressure


def test_the_youngest_gives_way_and_comes_back_to_its_place() -> None:
    scheduler = some_scheduler(num_blocks=4, watermark_percent=0)
    scheduler.submit(some_request("a", range(7), 9), 0.0)
    scheduler.submit(some_request("b", range(20, 23), 3), 0.0)
    assert step(scheduler) == [("a", 0, 0, 7), ("b", 0, 0, 3)]
    assert step(scheduler) == [("a", 0, 7, 1), ("b", 0, 3, 1)]
    # "b" waits with its block for one more, but gives it to the older one that needs it.
    assert [step(scheduler) for _ in range(4)] == [[("a", 0, position, 1)] for position in (8, 9, 10, 11)]
    assert scheduler.snapshot(0.0).preemptions == {}
    scheduler.submit(some_request("c", range(40, 43), 1), 0.0)
    assert step(scheduler) == [("a", 0, 12, 1)]
    assert scheduler.snapshot(0.0).preemptions == {"blocks": 1}
    assert [step(scheduler) for _ in range(2)] == [[("a", 0, position, 1)] for position in (13, 14)]
    assert step(scheduler)[0] == ("b", 0, 0, 5)
    assert scheduler.snapshot(0.0).recomputed_tokens == {"blocks": 4}
    finish(scheduler)
    assert scheduler.snapshot(0.0).generated_tokens == 9 + 3 + 1


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    scheduler = some_scheduler(num_blocks=8)
    scheduler.submit(some_request("a", range(5), 8), 0.0)
    scheduler.submit(some_request("b", range(20, 32), 6), 0.0)
    for _ in range(2):
        step(scheduler)
    scheduler.change_policy(PolicyChange(kv_blocks=5))
    assert scheduler.snapshot(0.0).preemptions == {"budget": 1}
    scheduler.change_policy(PolicyChange(kv_blocks=8))
    assert step(scheduler) == [("a", 0, 6, 1), ("b", 0, 12, 2)]
    assert scheduler.snapshot(0.0).recomputed_tokens == {"budget": 1}
    assert scheduler.snapshot(0.0).prefix_hit_tokens == 0


def test_admission_leaves_the_watermark_while_anything_runs_and_nothing_else() -> None:
    scheduler = some_scheduler(num_blocks=10, watermark_percent=20)
    scheduler.submit(some_request("a", range(4), 4), 0.0)
    scheduler.submit(some_request("b", range(20, 48), 4), 0.0)  # 7 blocks of 9, and 2 must stay
    assert step(scheduler) == [("a", 0, 0, 4), ("b", 0, 0, 28)]
    scheduler = some_scheduler(num_blocks=10, watermark_percent=20)
    scheduler.submit(some_request("a", range(4), 4), 0.0)
    scheduler.submit(some_request("b", range(20, 49), 4), 0.0)  # 8 of 9
    assert step(scheduler) == [("a", 0, 0, 4)]
    scheduler = some_scheduler(num_blocks=10, watermark_percent=20)
    scheduler.submit(some_request("b", range(39), 1), 0.0)  # all 10
    assert step(scheduler) == [("b", 0, 0, 39)]


def test_two_prompts_are_not_promised_the_same_blocks() -> None:
    scheduler = some_scheduler(num_blocks=10, watermark_percent=0)
    scheduler.submit(some_request("a", range(24), 4), 0.0)
    scheduler.submit(some_request("b", range(30, 46), 4), 0.0)
    assert step(scheduler, 8) == [("a", 0, 0, 8)]
    assert step(scheduler, 30) == [("a", 0, 8, 16)]
    assert scheduler.snapshot(0.0).preemptions == {}


def test_smaller_requests_go_past_one_that_does_not_fit_but_only_so_often() -> None:
    scheduler = some_scheduler(num_blocks=8, watermark_percent=0, max_length_tokens=32)
    scheduler.submit(some_request("runs", range(12), 20), 0.0)
    step(scheduler)
    scheduler.submit(some_request("big", range(100, 128), 2), 0.0)
    for number in range(40):
        scheduler.submit(some_request(f"s{number}", (200 + number,), 1), 0.0)
    past: list[str] = []
    while "big" not in past:
        past.extend(name for name, _, start, _ in step(scheduler) if start == 0)
    assert len(past) - 1 == MOST_OVERTAKEN


def test_priority_goes_first_but_the_overtaken_go_at_last() -> None:
    scheduler = some_scheduler(policy="Priority", max_sequences=1)
    scheduler.submit(some_request("low", (1,), 1, priority=5), 0.0)
    for number in range(40):
        scheduler.submit(some_request(f"h{number}", (200 + number,), 1), 0.0)
    order = [step(scheduler)[0][0] for _ in range(41)]
    assert order.index("low") == MOST_OVERTAKEN
    assert order[:3] == ["h0", "h1", "h2"]


def test_priority_is_ignored_first_come_first_served() -> None:
    scheduler = some_scheduler(max_sequences=1)
    scheduler.submit(some_request("low", (1,), 1, priority=5), 0.0)
    scheduler.submit(some_request("high", (2,), 1, priority=0), 0.0)
    assert [step(scheduler)[0][0] for _ in range(2)] == ["low", "high"]


def test_a_reserving_server_takes_the_longest_length_at_admission_and_preempts_nobody() -> None:
    scheduler = some_scheduler(num_blocks=8, max_length_tokens=16, swap_mode="Disabled", prefix_sharing_mode="Disabled")
    for name in ("a", "b", "c"):
        scheduler.submit(some_request(name, range(3), 10), 0.0)
    assert step(scheduler) == [("a", 0, 0, 3), ("b", 0, 0, 3)]
    figures = scheduler.snapshot(0.0)
    assert (figures.blocks_live, figures.running, figures.waiting) == (8, 2, 1)
    assert len(finish(scheduler)) == 28
    assert scheduler.snapshot(0.0).preemptions == {}
    assert scheduler.snapshot(0.0).blocks_free == 8


def test_a_reserving_server_shares_nothing_twice_with_several_choices() -> None:
    scheduler = some_scheduler(num_blocks=12, max_length_tokens=16, swap_mode="Disabled")
    scheduler.submit(some_request("a", range(6), 10, num_choices=3), 0.0)
    assert len(finish(scheduler)) == 30
    assert refusal(scheduler, "b", range(3), 3, num_choices=4).status == 400


# --- refusals


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    scheduler = some_scheduler(num_blocks=10, max_length_tokens=512)
    found = refusal(scheduler, "a", range(38), 3)
    assert (found.status, found.code) == (400, "context_length_exceeded")
    assert all(number in found.message for number in ("40", "38", "3"))
    scheduler.submit(some_request("b", range(38), 2), 0.0)


def test_an_empty_prompt_and_too_many_choices_and_a_used_id_are_refused() -> None:
    scheduler = some_scheduler(max_sequences=2)
    assert refusal(scheduler, "a", range(0), 3).status == 400
    found = refusal(scheduler, "a", range(3), 3, num_choices=3)
    assert found.status == 400 and "3" in found.message and "2" in found.message
    scheduler.submit(some_request("a", range(3)), 0.0)
    assert refusal(scheduler, "a", range(3), 3).status == 400
    assert scheduler.snapshot(0.0).outcomes == {"refused": 3}


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    scheduler = some_scheduler(max_queue=2)
    for name in ("a", "b"):
        scheduler.submit(some_request(name, range(3)), 0.0)
    found = refusal(scheduler, "c", range(3), 3)
    assert (found.status, found.code, found.retry_after_seconds) == (429, "queue_full", 5)


def test_a_request_that_waited_too_long_is_answered_and_a_started_one_is_not() -> None:
    scheduler = some_scheduler(max_sequences=1, queue_timeout_seconds=10)
    scheduler.submit(some_request("a", range(3), 30), 0.0)
    scheduler.submit(some_request("b", range(3)), 0.0)
    scheduler.submit(some_request("c", range(3)), 4.0)
    step(scheduler)
    assert scheduler.expire(10.0) == ()
    (rejected,) = scheduler.expire(11.0)
    assert rejected.request_id == "b"
    assert (rejected.refusal.status, rejected.refusal.code) == (503, "queue_timeout")
    assert rejected.refusal.retry_after_seconds is not None
    assert scheduler.snapshot(11.0).outcomes == {"timeout": 1}


# --- aborts and failures


def test_a_result_for_an_aborted_request_is_ignored_and_its_blocks_come_back_after_the_step() -> None:
    scheduler = some_scheduler(num_blocks=2)
    scheduler.submit(some_request("a", range(5), 3), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    scheduler.abort("a")
    scheduler.abort("a")
    scheduler.abort("nobody")
    scheduler.submit(some_request("b", range(5), 3), 0.0)
    assert scheduler.plan(0.0, step_limit()) is None
    assert scheduler.commit(plan, answer(plan), 0.0) == ()
    assert step(scheduler) == [("b", 0, 0, 5)]


def test_one_failed_row_fails_alone() -> None:
    scheduler = some_scheduler()
    for name in ("a", "b"):
        scheduler.submit(some_request(name, range(5)), 0.0)
    plan = scheduler.plan(0.0, step_limit(8))
    assert plan is not None
    result = answer(plan)
    bad = replace(
        result,
        sampled=tuple(token for token in result.sampled if token.key.request_id != "a"),
        failures=(RowFailure(SequenceKey("a", 0), "NaN in the logits"),),
    )
    (output,) = (o for o in scheduler.commit(plan, bad, 0.0) if o.request_id == "a")
    assert (output.finish_reason, output.error, output.token_id) == ("error", "NaN in the logits", None)
    assert {output.request_id for output in finish(scheduler)} == {"b"}


def test_one_failed_choice_leaves_the_others() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(5), 2, num_choices=3), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    result = answer(plan)
    bad = replace(result, sampled=result.sampled[1:], failures=(RowFailure(SequenceKey("a", 0), "NaN"),))
    outputs = scheduler.commit(plan, bad, 0.0)
    assert [(o.choice_index, o.finish_reason) for o in outputs] == [(0, "error"), (1, None), (2, None)]
    assert [(o.choice_index, o.finish_reason) for o in finish(scheduler)] == [(1, "length"), (2, "length")]
    assert scheduler.snapshot(0.0).outcomes == {"error": 1}


def test_a_failed_step_ends_everything_that_was_in_it_and_nothing_else() -> None:
    scheduler = some_scheduler(max_sequences=2)
    scheduler.submit(some_request("a", range(5), num_choices=2), 0.0)
    scheduler.submit(some_request("b", range(5)), 0.0)
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    outputs = scheduler.fail_step(plan, "out of memory")
    assert [(o.request_id, o.choice_index, o.error) for o in outputs] == [
        ("a", 0, "out of memory"),
        ("a", 1, "out of memory"),
    ]
    assert {output.request_id for output in finish(scheduler)} == {"b"}


def test_a_stopped_choice_gives_its_blocks_back_and_the_others_go_on() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(6), 5, num_choices=2), 0.0)
    step(scheduler)
    step(scheduler)
    before = scheduler.snapshot(0.0).blocks_live
    scheduler.stop_choice("a", 0)
    scheduler.stop_choice("a", 0)
    assert scheduler.snapshot(0.0).blocks_live == before - 1
    assert {output.choice_index for output in finish(scheduler)} == {1}
    assert scheduler.snapshot(0.0).outcomes == {"length": 1}


# --- live settings


def test_a_budget_below_what_an_accepted_request_needs_is_refused_with_the_numbers() -> None:
    scheduler = some_scheduler(num_blocks=10)
    scheduler.submit(some_request("a", range(20), 8), 0.0)
    for blocks, words in ((6, ("6", "7")), (11, ("11", "10"))):
        with pytest.raises(RequestRefused) as caught:
            scheduler.change_policy(PolicyChange(kv_blocks=blocks))
        assert caught.value.refusal.status == 400
        assert all(word in caught.value.refusal.message for word in words)
    assert scheduler.change_policy(PolicyChange(kv_blocks=7)).kv_blocks == 7
    assert refusal(scheduler, "b", range(20), 9).status == 400


def test_a_change_returns_all_that_is_in_force() -> None:
    scheduler = some_scheduler()
    in_force = scheduler.change_policy(PolicyChange(max_queue=3, step_milliseconds=20))
    assert in_force == PolicyChange(
        kv_blocks=64,
        max_sequences=16,
        max_queue=3,
        queue_timeout_seconds=60,
        step_milliseconds=20,
        watermark_percent=1,
    )
    with pytest.raises(RequestRefused):
        scheduler.change_policy(PolicyChange(max_queue=0))


def test_a_reset_forgets_everything_even_what_runs() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(8), 1), 0.0)
    finish(scheduler)
    scheduler.submit(some_request("b", range(50, 58), 3), 0.0)
    step(scheduler)
    scheduler.change_policy(PolicyChange(reset_prefix_cache=True))
    finish(scheduler)
    assert scheduler.snapshot(0.0).blocks_cached == 0
    for start in (0, 50):
        scheduler.submit(some_request(f"c{start}", range(start, start + 8), 1), 0.0)
        assert step(scheduler)[0][2] == 0


def test_an_unused_block_is_kept_no_longer_than_its_retention() -> None:
    scheduler = some_scheduler(retention_ttl_seconds=30)
    scheduler.submit(some_request("a", range(8), 1), 0.0)
    finish(scheduler)
    scheduler.expire(30.0)
    assert scheduler.snapshot(30.0).blocks_cached == 2
    scheduler.expire(30.5)
    assert scheduler.snapshot(30.5).blocks_cached == 0


def test_cached_ends_go_before_cached_beginnings() -> None:
    scheduler = some_scheduler(num_blocks=6)
    scheduler.submit(some_request("a", range(16), 1), 0.0)
    finish(scheduler)
    scheduler.submit(some_request("b", range(50, 62), 1), 0.0)  # takes 3 blocks, of which 2 are free
    finish(scheduler)
    scheduler.submit(some_request("c", range(16), 1), 0.0)
    assert step(scheduler)[0][2] >= 8
    assert scheduler.snapshot(0.0).evicted_blocks >= 1


def test_nothing_that_a_failed_row_was_computed_from_is_found_again() -> None:
    scheduler = some_scheduler()
    scheduler.submit(some_request("a", range(20)), 0.0)
    assert step(scheduler, 8) == [("a", 0, 0, 8)]
    plan = scheduler.plan(0.0, step_limit())
    assert plan is not None
    broken = StepResult(plan.epoch, (), failures=(RowFailure(SequenceKey("a", 0), "NaN in the logits"),))
    scheduler.commit(plan, broken, 0.0)
    assert scheduler.check() == () and not scheduler.has_work()
    scheduler.submit(some_request("b", range(20)), 0.0)
    assert step(scheduler) == [("b", 0, 0, 20)]
