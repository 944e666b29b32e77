"""Cases of public bug reports at the scheduler's level, by their ids: a toy model's ids must equal the reference."""

import random

import pytest

from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.scheduler import Scheduler
from tests.runtime.builders import some_request, some_settings, step_limit
from tests.runtime.toy_executor import ToyExecutor, reference_ids
from tests.runtime.world import World


def random_prompt(draw: random.Random, length: int) -> tuple[int, ...]:
    return tuple(draw.randrange(50) for _ in range(length))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_a02_prompts_on_block_edges_give_the_same_ids_cached_or_not(length: int) -> None:
    world = World(some_settings(block_size=16, num_blocks=64))
    prompt = random_prompt(random.Random(length), length)
    for name in ("first", "second", "third"):
        world.submit(some_request(name, prompt, 24))
        world.drain(max_tokens=20)
    for name in ("x", "y", "z"):
        world.submit(some_request(name, prompt, 24))
    world.drain(max_tokens=20)
    # A beginning is found to the token, and the last token is always computed.
    assert world.records["first"].cached_tokens == {0}
    # A part of a block below a quarter isn't worth copying a page for.
    part = (length - 1) % 16
    reused = length - 1 if part >= 4 else length - 1 - part
    for name in ("second", "third", "x", "y", "z"):
        assert world.records[name].cached_tokens == {reused}


def test_a04_preempted_streams_lose_no_token_and_get_none_twice() -> None:
    world = World(some_settings(block_size=16, num_blocks=12, max_length_tokens=512))
    draw = random.Random(4)
    for seed in range(1, 5):
        request = some_request(
            f"r{seed}", random_prompt(draw, 30), 60, seed=seed, temperature=0.8, frequency_penalty=0.7
        )
        assert world.submit(request)
    world.drain()
    figures = world.scheduler.snapshot(0.0)
    assert figures.preemptions["blocks"] >= 2
    assert figures.recomputed_tokens["blocks"] > 0
    assert all(len(record.given[0]) == 60 for record in world.records.values())
    assert figures.generated_tokens == 240
    assert figures.prompt_tokens == 120


def test_a06_what_can_never_fit_is_refused_and_blocks_nobody() -> None:
    world = World(some_settings(block_size=16, num_blocks=10, max_length_tokens=512))
    with pytest.raises(RequestRefused, match="160"):
        world.scheduler.submit(some_request("huge", range(200), 10), 0.0)
    world.counted["refused"] += 1
    assert world.submit(some_request("small", range(5), 3))
    assert not world.submit(some_request("long", range(100), 100))
    world.drain()
    assert world.num_steps == 3


@pytest.mark.parametrize("seed", range(5))
def test_a11_fuzz_under_eviction_pressure_keeps_ids_and_invariants(seed: int) -> None:
    _fuzz(seed)


def test_a11_the_same_seed_gives_the_same_trace() -> None:
    assert _fuzz(0, 60) == _fuzz(0, 60)


def _fuzz(seed: int, num_requests: int = 300) -> list[tuple[str, tuple[int, ...]]]:
    draw = random.Random(seed)
    world = World(some_settings(block_size=16, num_blocks=24, max_queue=400, queue_timeout_seconds=3600))
    head = random_prompt(draw, 24)
    trace: list[tuple[str, tuple[int, ...]]] = []
    for number in range(num_requests):
        prompt = head + random_prompt(draw, draw.randint(1, 40))
        choices = 2 if draw.random() < 0.1 else 1
        world.submit(some_request(f"r{number}", prompt, draw.randint(8, 48), num_choices=choices))
        if draw.random() < 0.2:
            open_requests = world.open_requests()
            world.abort(open_requests[draw.randrange(len(open_requests))])
        # Arrivals come a little faster than the pool can serve, so that pressure never ends.
        for _ in range(draw.randint(2, 8)):
            plan = world.plan(draw.choice((None, 20, 64)))
            if plan is not None:
                trace.append(("step", tuple(row.start_position for row in plan.rows)))
                world.finish(plan)
    world.drain()
    assert world.scheduler.snapshot(0.0).evicted_blocks > 0
    return trace + [(name, tuple(record.given[0])) for name, record in world.records.items()]


def test_a13_an_equal_chunk_behind_another_one_is_another_prefix() -> None:
    draw = random.Random(13)
    x, y, z = (random_prompt(draw, 16) for _ in range(3))
    world = World(some_settings(block_size=16))
    for name, prompt in (("xz", x + z), ("yz", y + z), ("z", z), ("again", x + z)):
        world.submit(some_request(name, prompt, 4))
        world.drain()
    cached = {name: record.cached_tokens for name, record in world.records.items()}
    assert cached == {"xz": {0}, "yz": {0}, "z": {0}, "again": {31}}


@pytest.mark.parametrize("hash_key", [b"one", b"another"])
def test_a13_colliding_hashes_of_2000_prompts_give_no_wrong_id(hash_key: bytes) -> None:
    draw = random.Random(8)
    scheduler = Scheduler(some_settings(block_size=16, num_blocks=200, digest_bytes=1), hash_key)
    executor = ToyExecutor(200, 16)
    firsts = [random_prompt(draw, 16) for _ in range(300)]
    for number in range(2000):
        # Beginnings come again, so that there are hits beside the collisions.
        request = some_request(f"r{number}", draw.choice(firsts) + random_prompt(draw, 16), 2)
        scheduler.submit(request, 0.0)
        given: list[int | None] = []
        while (plan := scheduler.plan(0.0, step_limit())) is not None:
            given.extend(output.token_id for output in scheduler.commit(plan, executor.execute(plan), 0.0))
        assert tuple(given) == reference_ids(request.prompt_ids, request.params)
    figures = scheduler.snapshot(0.0)
    assert figures.prefix_hit_tokens > 1000
    assert figures.blocks_live == 0
    assert scheduler.check() == ()
