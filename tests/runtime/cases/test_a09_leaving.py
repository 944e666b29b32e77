"""A09: a client goes away at every stage of a request's life, streaming and not.

The engine is frozen while the client leaves, so that each stage is met for sure, and so that what the engine does
afterwards can be counted in steps.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from tests.runtime.cases.checks import check_settled
from tests.runtime.cases.rig import Rig, StageMissed, in_flight, run_until, some_ids
from tests.runtime.cases.wire import RawRequest

# A step that was under way when the client left, and one more until the message has come. A tiny model's steps are
# shorter than it may take a busy machine to hand a message over; they may go on for that long.
MOST_STEPS = 2
HAND_OVER_SECONDS = 0.1
MOST_TRIES = 10
FEW_ROUNDS, MANY_ROUNDS = 2, 50
WARM_ROUND = 5
RSS_GROWTH = 0.05

Body = dict[str, Any]


def leave(rig: Rig, request: RawRequest, others: int = 0) -> dict[str, Any]:
    """Let the client leave while the engine is frozen; return the figures once the server has seen it go."""
    with request:
        pass
    rig.server.wait_until(lambda: in_flight(rig) == others)
    return rig.snapshot()


def while_queued(rig: Rig, body: Body, stack: ExitStack) -> None:
    stack.enter_context(rig.settings(maxSequences=1))
    with rig.server.frozen_engine():
        stack.enter_context(RawRequest(rig.server, rig.body(some_ids("blocker", 8), 500, stream=True)))
        rig.server.wait_until(lambda: in_flight(rig) == 1)
        run_until(rig, lambda now: now["running"] == 1)
        request = stack.enter_context(RawRequest(rig.server, body))
        rig.server.wait_until(lambda: in_flight(rig) == 2)
        run_until(rig, lambda now: now["waiting"] == 1)
        before = leave(rig, request, others=1)
    rig.server.wait_until(lambda: rig.snapshot()["waiting"] == 0)
    # It was never begun.
    assert rig.snapshot()["promptTokens"] == before["promptTokens"]


def while_prefilling(rig: Rig, body: Body, stack: ExitStack) -> None:
    stack.enter_context(rig.settings(maxBatchTokens=16))
    before = rig.snapshot()
    with rig.server.frozen_engine():
        request = stack.enter_context(RawRequest(rig.server, body))
        rig.server.wait_until(lambda: in_flight(rig) == 1)
        met = run_until(rig, lambda now: now["computedTokens"] > before["computedTokens"])
        if met["generatedTokens"] > before["generatedTokens"]:
            raise StageMissed
        left = leave(rig, request)
    check_stopped(rig, left)
    assert rig.snapshot()["generatedTokens"] == before["generatedTokens"]


def while_decoding(rig: Rig, body: Body, stack: ExitStack) -> None:
    before = rig.snapshot()["generatedTokens"]
    with rig.server.frozen_engine():
        request = stack.enter_context(RawRequest(rig.server, body))
        rig.server.wait_until(lambda: in_flight(rig) == 1)
        run_until(rig, lambda now: now["generatedTokens"] > before + 2)
        left = leave(rig, request)
    check_stopped(rig, left)


def while_preempted(rig: Rig, body: Body, stack: ExitStack) -> None:
    stack.enter_context(rig.settings(kvBlocks=12))
    before = rig.snapshot()["preemptions"].get("blocks", 0)
    with rig.server.frozen_engine():
        older = stack.enter_context(RawRequest(rig.server, rig.body(some_ids("older", 80), 100, stream=True)))
        rig.server.wait_until(lambda: in_flight(rig) == 1)
        request = stack.enter_context(RawRequest(rig.server, body))
        rig.server.wait_until(lambda: in_flight(rig) == 2)
        run_until(rig, lambda now: now["preemptions"].get("blocks", 0) > before and now["waiting"] == 1)
        left = leave(rig, request, others=1)
    older.read_until(b"[DONE]")
    # What it had lost was never computed again.
    assert rig.snapshot()["recomputedTokens"].get("blocks", 0) == left["recomputedTokens"].get("blocks", 0)


def check_stopped(rig: Rig, left: dict[str, Any]) -> None:
    rig.server.wait_until(lambda: rig.snapshot()["running"] == 0)
    now = rig.snapshot()
    steps, seconds = now["steps"] - left["steps"], now["stepSeconds"] - left["stepSeconds"]
    assert steps <= MOST_STEPS or seconds < HAND_OVER_SECONDS, f"{steps} steps, {seconds} s, for a client that had left"
    # It was nowhere near its end.
    assert steps < 10


STAGES: dict[str, tuple[Callable[[Rig, Body, ExitStack], None], int, int]] = {
    # stage, and the tokens of prompt and answer
    "queued": (while_queued, 20, 100),
    "prefill": (while_prefilling, 300, 20),
    "decoding": (while_decoding, 20, 480),
    "preempted": (while_preempted, 80, 100),
}


def one_round(rig: Rig, stage: str, stream: bool, number: int) -> None:
    outcomes = rig.outcomes()
    for attempt in range(MOST_TRIES):
        try:
            leave_at(rig, stage, stream, f"{number} {attempt}")
            break
        except StageMissed:
            rig.server.wait_until(lambda: in_flight(rig) == 0)
    else:
        raise AssertionError(f"the stage was missed {MOST_TRIES} times")
    rig.server.wait_until(lambda: in_flight(rig) == 0)
    now = rig.outcomes()
    assert all(now[name] == outcomes[name] for name in ("error", "stop", "refused", "timeout"))


def leave_at(rig: Rig, stage: str, stream: bool, name: str) -> None:
    act, prompt_tokens, max_tokens = STAGES[stage]
    body = rig.body(some_ids(f"a09 {stage} {stream} {name}", prompt_tokens), max_tokens, stream=stream)
    cancelled = rig.outcomes()["cancelled"]
    with ExitStack() as stack:
        act(rig, body, stack)
        # Before anybody else leaves: this one counts as cancelled, and as nothing else.
        rig.server.wait_until(lambda: rig.outcomes()["cancelled"] == cancelled + 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a09_work_for_a_client_that_left_stops_and_nothing_stays(rig: Rig, stage: str, stream: bool) -> None:
    for number in range(FEW_ROUNDS):
        one_round(rig, stage, stream, number)


@pytest.mark.parametrize("stream", [True, False])
def test_a09_a_request_that_is_done_counts_as_done(rig: Rig, stream: bool) -> None:
    outcomes = rig.outcomes()
    for number in range(FEW_ROUNDS):
        with RawRequest(rig.server, rig.body(some_ids(f"a09 done {number}", 20), 6, stream=stream)) as request:
            request.read_until(b'"finish_reason":"length"' if stream else b"HTTP/1.1 200")
    rig.server.wait_until(lambda: rig.outcomes()["length"] == outcomes["length"] + FEW_ROUNDS)
    assert rig.outcomes() == outcomes | {"length": outcomes["length"] + FEW_ROUNDS}


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a09_fifty_rounds_leave_no_memory_behind(rig: Rig, stage: str, stream: bool) -> None:
    processes = [psutil.Process(rig.server.process.pid), rig.server.engine]
    warm: list[int] = []
    for number in range(1, MANY_ROUNDS + 1):
        one_round(rig, stage, stream, 1000 + number)
        if number == WARM_ROUND:
            warm = [process.memory_info().rss for process in processes]
    check_settled(rig)
    for process, before in zip(processes, warm, strict=True):
        assert process.memory_info().rss < before * (1 + RSS_GROWTH), f"{before} bytes after {WARM_ROUND} rounds"
