"""The engine's loop with a toy model: what comes in is answered, one bad thing spoils no other."""

import logging

import pytest

from pagefleet_runtime.engine import EngineBroken
from pagefleet_runtime.protocol import (
    Abort,
    Accepted,
    ChangePolicy,
    PolicyChange,
    PolicyChanged,
    Rejected,
    StepOutput,
    StopChoice,
    Submit,
)
from pagefleet_runtime.request import Grammar
from tests.runtime.builders import some_request
from tests.runtime.toy_engine import engine_at_work
from tests.runtime.toy_executor import reference_ids

GRAMMAR = Grammar("json_object", "{}")
BAD_GRAMMAR = Grammar("json_schema", "bad")


def test_requests_are_accepted_and_get_their_tokens() -> None:
    requests = [some_request("a", range(10), 6), some_request("b", range(3, 8), 4)]
    with engine_at_work() as engine:
        engine.send(*map(Submit, requests))
        assert [engine.next(Accepted).request_id for _ in requests] == ["a", "b"]
        outputs = engine.outputs_until_end("a", "b")
    for request in requests:
        ids = tuple(output.token_id for output in outputs[request.request_id])
        assert ids == reference_ids(request.prompt_ids, request.params)


def test_what_has_ended_is_forgotten_and_its_blocks_are_back() -> None:
    with engine_at_work() as engine:
        engine.send(Submit(some_request("a", range(10), 2)))
        engine.outputs_until_end("a")
        assert engine.executor.forgotten.get(timeout=20) == "a"
        engine.send(Submit(some_request("b", range(4), 1)))
        snapshot = engine.next(StepOutput).snapshot
    assert (snapshot.running, snapshot.blocks_live, snapshot.outcomes) == (0, 0, {"length": 2})


def test_the_first_output_says_how_long_the_request_queued() -> None:
    with engine_at_work() as engine:
        engine.send(Submit(some_request("a", range(10), 3)))
        (outputs,) = engine.outputs_until_end("a").values()
    assert [output.queue_seconds is not None for output in outputs] == [True, False, False]


def test_an_abort_frees_the_blocks_with_the_step_that_is_under_way() -> None:
    with engine_at_work() as engine:
        engine.executor.go.clear()
        engine.send(Submit(some_request("a", range(10), 50)))
        engine.next(Accepted)
        engine.send(Abort("a"))
        engine.executor.go.set()
        while (snapshot := engine.next(StepOutput).snapshot).outcomes != {"cancelled": 1}:
            pass
    assert (snapshot.running, snapshot.blocks_live, snapshot.steps <= 2) == (0, 0, True)


def test_a_stopped_choice_ends_and_the_other_goes_on() -> None:
    with engine_at_work() as engine:
        engine.executor.go.clear()
        engine.send(Submit(some_request("a", range(5), 4, num_choices=2, temperature=1.0)), StopChoice("a", 0))
        engine.executor.go.set()
        outputs = [output for output in engine.outputs_until_end("a")["a"] if output.finish_reason]
    assert [(output.choice_index, output.finish_reason) for output in outputs] == [(1, "length")]


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    with engine_at_work() as engine:
        engine.send(Submit(some_request("a", range(200), 10)))
        rejected = engine.next(Rejected)
    assert (rejected.request_id, rejected.refusal.status) == ("a", 400)


# --- grammars


def test_a_grammar_compiles_while_others_run_and_the_request_is_accepted_after_it() -> None:
    with engine_at_work() as engine:
        engine.executor.compiled.clear()
        engine.send(Submit(some_request("g", range(5), 2, grammar=GRAMMAR)), Submit(some_request("a", range(5), 2)))
        assert engine.next(Accepted).request_id == "a"
        engine.outputs_until_end("a")
        engine.executor.compiled.set()
        assert engine.next(Accepted).request_id == "g"
        engine.outputs_until_end("g")
        assert engine.executor.prepared == ["g"]


def test_a_wrong_grammar_is_refused_and_forgotten() -> None:
    with engine_at_work() as engine:
        engine.send(Submit(some_request("g", range(5), grammar=BAD_GRAMMAR)))
        rejected = engine.next(Rejected)
        assert (rejected.refusal.status, rejected.refusal.message) == (400, "this grammar is wrong")
        assert engine.executor.forgotten.get(timeout=20) == "g"
        assert engine.next(StepOutput).snapshot.outcomes == {"refused": 1}


def test_a_grammar_that_compiles_too_long_is_refused_and_forgotten_once_it_ends() -> None:
    with engine_at_work(serving={"grammarTimeoutSeconds": 1}) as engine:
        engine.executor.compiled.clear()
        engine.send(Submit(some_request("g", range(5), grammar=GRAMMAR)))
        rejected = engine.next(Rejected)
        assert rejected.refusal.status == 400 and "timed out after 1 s" in rejected.refusal.message
        assert engine.executor.forgotten.empty()
        engine.executor.compiled.set()
        assert engine.executor.forgotten.get(timeout=20) == "g"


def test_an_abort_while_the_grammar_compiles_counts_as_cancelled() -> None:
    with engine_at_work() as engine:
        engine.executor.compiled.clear()
        engine.send(Submit(some_request("g", range(5), grammar=GRAMMAR)), Abort("g"))
        while engine.next(StepOutput).snapshot.outcomes != {"cancelled": 1}:
            pass
        engine.executor.compiled.set()
        assert engine.executor.forgotten.get(timeout=20) == "g"


# --- failures


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with engine_at_work() as engine:
        engine.executor.failing_steps = 1
        engine.send(Submit(some_request("a", range(5), 3)))
        assert [output.finish_reason for output in engine.outputs_until_end("a")["a"]] == ["error"]
        engine.send(Submit(some_request("b", range(5), 3)))
        assert len(engine.outputs_until_end("b")["b"]) == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "requests a" in caplog.text


def test_step_after_step_failing_ends_the_engine() -> None:
    with engine_at_work() as engine:
        engine.executor.failing_steps = 3
        for name in ("a", "b", "c"):
            engine.send(Submit(some_request(name, range(5), 3)))
            engine.outputs_until_end(name)
        assert isinstance(engine.take_error(), EngineBroken)


def test_failures_that_others_lie_between_do_not_add_up() -> None:
    with engine_at_work() as engine:
        for number, failing_steps in enumerate((2, 0, 2)):
            engine.executor.failing_steps = failing_steps
            for turn in range(max(1, failing_steps)):
                name = f"{number}-{turn}"
                engine.send(Submit(some_request(name, range(5), 1)))
                engine.outputs_until_end(name)
        assert engine.thread.is_alive()


# --- live policy


def test_a_policy_change_comes_into_force_while_a_request_runs() -> None:
    with engine_at_work() as engine:
        engine.executor.go.clear()
        engine.send(Submit(some_request("a", range(10), 6)))
        engine.send(ChangePolicy(1, PolicyChange(kv_blocks=20, step_milliseconds=70)))
        engine.executor.go.set()
        policy = engine.next(PolicyChanged).policy
        engine.outputs_until_end("a")
        engine.send(ChangePolicy(2, PolicyChange()))
        assert engine.next(PolicyChanged).policy == policy
    assert policy is not None
    assert (policy.kv_blocks, policy.step_milliseconds, policy.max_queue) == (20, 70, 512)


def test_a_policy_that_cannot_be_is_refused_and_changes_nothing() -> None:
    with engine_at_work() as engine:
        engine.send(ChangePolicy(1, PolicyChange(kv_blocks=10_000, step_milliseconds=70)))
        changed = engine.next(PolicyChanged)
        assert changed.policy is None and changed.refusal is not None and changed.refusal.status == 400
        engine.send(ChangePolicy(2, PolicyChange()))
        policy = engine.next(PolicyChanged).policy
    assert policy is not None and (policy.kv_blocks, policy.step_milliseconds) == (32, 100)
