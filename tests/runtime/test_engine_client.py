"""The engine client: states, streams, refusals and stalls, against an engine that the test plays."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pagefleet_contract.engine import ServingSettings
from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.errors import ModelRefused, RequestRefused
from pagefleet_runtime.protocol import (
    Abort,
    Accepted,
    ChangePolicy,
    EngineInfo,
    Loaded,
    LoadFailed,
    LoadProgress,
    PolicyChange,
    PolicyChanged,
    Rejected,
    StopChoice,
)
from pagefleet_runtime.request import Grammar
from pagefleet_runtime.request_stream import RequestStream
from tests.runtime.scripted_link import INFO, Scene, request, settle, token


def played(scene: Callable[[Scene], Coroutine[Any, Any, None]], settings: ServingSettings | None = None) -> None:
    """Run a scene with a client that is ready."""

    async def play() -> None:
        stage = Scene(settings)
        await stage.become_ready()
        await scene(stage)

    asyncio.run(play())


async def opened(scene: Scene, request_id: str, num_choices: int = 1) -> RequestStream:
    opening = asyncio.create_task(scene.client.open(request(request_id, num_choices)))
    await settle()
    assert not opening.done(), "open returns only once the engine has accepted"
    await scene.engine_says(Accepted(request_id))
    return await opening


def test_it_is_ready_only_after_a_token_was_produced() -> None:
    async def play() -> None:
        scene = Scene()
        with pytest.raises(RequestRefused) as refused:
            await scene.client.open(request("a"))
        assert (refused.value.refusal.status, refused.value.refusal.code) == (503, "model_loading")
        assert refused.value.refusal.retry_after_seconds
        await scene.engine_says(LoadProgress("weights", 0.5), Loaded(INFO))
        assert scene.client.load == LoadProgress("weights", 0.5)
        with pytest.raises(RequestRefused, match="loading"):
            scene.client.check_accepts()
        await scene.engine_says(Accepted("pagefleet-warm-up"))
        await scene.step(token("pagefleet-warm-up", 3, finish_reason="length"))
        scene.client.check_accepts()

    asyncio.run(play())


def test_it_is_ready_only_after_every_preparation() -> None:
    async def play() -> None:
        scene, prepared = Scene(), asyncio.Event()

        async def prepare(info: EngineInfo) -> None:
            assert info == INFO
            await prepared.wait()

        scene.client.preparations.append(prepare)
        await scene.become_ready()
        states: list[str] = [scene.client.state]
        prepared.set()
        await settle()
        assert [*states, scene.client.state] == ["loading", "ready"]

    asyncio.run(play())


def test_a_preparation_that_refuses_the_model_ends_the_start() -> None:
    async def play() -> None:
        scene = Scene()

        async def prepare(info: EngineInfo) -> None:
            raise ModelRefused("the tokenizer of this model can't be used")

        scene.client.preparations.append(prepare)
        await scene.become_ready()
        assert (scene.client.state, scene.client.failure) == ("failed", "the tokenizer of this model can't be used")

    asyncio.run(play())


def test_a_model_that_is_refused_is_a_failure_with_its_message() -> None:
    async def play() -> None:
        scene = Scene()
        await scene.engine_says(LoadFailed("model x has Mamba layers"))
        assert (scene.client.state, scene.client.failure) == ("failed", "model x has Mamba layers")

    asyncio.run(play())


def test_a_stream_gives_its_tokens_and_ends_with_its_last_choice() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a", num_choices=2)
        await stage.step(token("a", 1), token("other", 9), token("a", 2, 1, "stop"))
        await stage.step(token("a", 3, 0, "length"))
        assert [(output.choice_index, output.token_id) async for output in stream] == [(0, 1), (1, 2), (0, 3)]
        assert stage.client.in_flight == 0
        stream.close()
        assert Abort("a") not in stage.link.sent

    played(scene)


def test_a_stream_that_nobody_reads_holds_up_no_other() -> None:
    async def scene(stage: Scene) -> None:
        slow, fast = await opened(stage, "slow"), await opened(stage, "fast")
        for number in range(100):
            await stage.step(token("slow", number), token("fast", number))
            assert (await anext(fast)).token_id == number
        assert (await anext(slow)).token_id == 0

    played(scene)


def test_closing_an_unfinished_stream_aborts_it_once() -> None:
    async def scene(stage: Scene) -> None:
        async with await opened(stage, "a") as stream:
            pass
        stream.close()
        assert stage.link.sent.count(Abort("a")) == 1
        await stage.step(token("a", 1))
        assert stage.client.in_flight == 0

    played(scene)


def test_cancelling_an_open_takes_the_request_back() -> None:
    async def scene(stage: Scene) -> None:
        opening = asyncio.create_task(stage.client.open(request("a")))
        await settle()
        opening.cancel()
        await settle()
        assert Abort("a") in stage.link.sent and stage.client.in_flight == 0

    played(scene)


def test_a_refusal_is_raised_from_open() -> None:
    async def scene(stage: Scene) -> None:
        opening = asyncio.create_task(stage.client.open(request("a")))
        await settle()
        await stage.engine_says(Rejected("a", Refusal(429, "queue_full", "full", retry_after_seconds=3)))
        with pytest.raises(RequestRefused, match="full"):
            await opening
        assert stage.client.in_flight == 0

    played(scene)


def test_a_timeout_in_the_queue_is_raised_instead_of_the_first_output() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a")
        await stage.engine_says(Rejected("a", Refusal(503, "queue_timeout", "waited 60 s")))
        with pytest.raises(RequestRefused, match="waited"):
            await anext(stream)

    played(scene)


def test_a_stopped_choice_gives_no_more_outputs_and_the_others_go_on() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a", num_choices=2)
        await stage.step(token("a", 1, 0), token("a", 2, 1), token("a", 3, 0))
        assert (await anext(stream)).token_id == 1
        stream.stop_choice(0)
        assert StopChoice("a", 0) in stage.link.sent
        await stage.step(token("a", 4, 0), token("a", 5, 1, "stop"))
        assert [output.token_id async for output in stream] == [2, 5]

    played(scene)


def test_stopping_a_choice_that_has_ended_drops_what_is_left_of_it() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a")
        await stage.step(token("a", 1), token("a", 2))
        await stage.step(token("a", 3, 0, "length"))
        assert (await anext(stream)).token_id == 1
        stream.stop_choice(0)
        assert [output async for output in stream] == []
        assert StopChoice("a", 0) not in stage.link.sent

    played(scene)


def test_a_lost_engine_ends_every_stream_with_an_error() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a", num_choices=2)
        stage.link.lose("the engine process was killed by SIGKILL")
        await settle()
        outputs = [output async for output in stream]
        assert [(output.choice_index, output.finish_reason) for output in outputs] == [(0, "error"), (1, "error")]
        assert "SIGKILL" in (outputs[0].error or "")
        with pytest.raises(RequestRefused) as refused:
            stage.client.check_accepts()
        assert refused.value.refusal.code == "engine_failed"

    played(scene)


def test_a_drain_takes_nothing_new_and_lets_the_rest_finish() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a")
        stage.client.begin_drain()
        with pytest.raises(RequestRefused) as refused:
            await stage.client.open(request("b"))
        assert refused.value.refusal.code == "draining"
        drained = asyncio.create_task(stage.client.drained())
        await settle()
        assert not drained.done()
        await stage.step(token("a", 1, 0, "stop"))
        await asyncio.wait_for(drained, 10)
        assert [output.finish_reason async for output in stream] == ["stop"]

    played(scene)


def test_a_drain_that_takes_too_long_ends_the_rest_with_an_error() -> None:
    async def scene(stage: Scene) -> None:
        stream = await opened(stage, "a")
        stage.client.begin_drain()
        await asyncio.wait_for(stage.client.drained(), 10)
        assert [output.finish_reason async for output in stream] == ["error"]
        assert Abort("a") in stage.link.sent

    played(scene, ServingSettings(drain_timeout_seconds=0))


def test_a_policy_change_returns_what_is_in_force_or_raises() -> None:
    async def scene(stage: Scene) -> None:
        async def answered(policy: PolicyChange | None, refusal: Refusal | None) -> PolicyChange:
            changing = asyncio.create_task(stage.client.change_policy(PolicyChange(max_queue=3)))
            await settle()
            sent = stage.link.sent[-1]
            assert isinstance(sent, ChangePolicy) and sent.change == PolicyChange(max_queue=3)
            await stage.engine_says(PolicyChanged(sent.change_id, policy, refusal))
            return await changing

        in_force = PolicyChange(max_queue=3, kv_blocks=9)
        assert await answered(in_force, None) == stage.client.policy == in_force
        with pytest.raises(RequestRefused, match="too few"):
            await answered(None, Refusal(400, "invalid_value", "too few"))
        assert stage.client.policy == in_force

    played(scene)


def test_an_id_in_use_is_refused() -> None:
    async def scene(stage: Scene) -> None:
        await opened(stage, "a")
        with pytest.raises(RequestRefused, match="already in use"):
            await stage.client.open(request("a"))
        assert stage.client.in_flight == 1

    played(scene)


# --- stalls: since when the engine owes a step


def test_idle_is_no_stall() -> None:
    async def scene(stage: Scene) -> None:
        stage.clock.seconds += 1000
        assert stage.client.stalled_seconds == 0
        assert stage.client.last_step_age_seconds > 0

    played(scene)


def test_a_stall_counts_from_the_work_or_the_last_step_whichever_is_later() -> None:
    async def scene(stage: Scene) -> None:
        stage.clock.seconds += 1000
        await opened(stage, "a")
        stage.clock.seconds += 5
        assert stage.client.stalled_seconds == 5
        await stage.step(token("a", 1), running=1)
        assert stage.client.stalled_seconds == 0
        stage.clock.seconds += 7
        assert stage.client.stalled_seconds == 7
        await stage.step(token("a", 2, 0, "stop"))
        stage.clock.seconds += 100
        assert stage.client.stalled_seconds == 0

    played(scene)


def test_clients_that_give_up_do_not_hide_a_stall() -> None:
    async def scene(stage: Scene) -> None:
        for number in range(3):
            (await opened(stage, f"r{number}")).close()
            stage.clock.seconds += 10
        assert stage.client.stalled_seconds == 30

    played(scene)


def test_an_engine_that_answers_but_makes_no_step_stalls() -> None:
    async def scene(stage: Scene) -> None:
        await opened(stage, "a")
        stage.clock.seconds += 10
        await stage.snapshot(waiting=1)
        assert stage.client.stalled_seconds == 10

    played(scene)


def test_an_abort_that_the_engine_has_seen_ends_the_wait() -> None:
    async def scene(stage: Scene) -> None:
        (await opened(stage, "a")).close()
        stage.clock.seconds += 10
        await stage.snapshot()
        assert stage.client.stalled_seconds == 0

    played(scene)


def test_compiling_a_grammar_is_no_stall_until_its_time_is_up() -> None:
    async def scene(stage: Scene) -> None:
        opening = asyncio.create_task(stage.client.open(request("a", grammar=Grammar("json_object", "{}"))))
        await settle()
        stage.clock.seconds += 10
        assert stage.client.stalled_seconds == 0
        stage.clock.seconds += 3
        assert stage.client.stalled_seconds == 3
        opening.cancel()

    played(scene, ServingSettings(grammar_timeout_seconds=10))


def test_a_request_without_a_grammar_waits_from_now_on_even_behind_one_that_compiles() -> None:
    async def scene(stage: Scene) -> None:
        grammar = Grammar("json_object", "{}")
        openings = [asyncio.create_task(stage.client.open(request("a", grammar=grammar)))]
        await settle()
        openings.append(asyncio.create_task(stage.client.open(request("b"))))
        await settle()
        stage.clock.seconds += 4
        assert stage.client.stalled_seconds == 4
        for opening in openings:
            opening.cancel()

    played(scene)
