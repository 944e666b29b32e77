"""The cache in eight bits in the engine: scales travel with their pages, and whoever reads a page reads its codes."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pagefleet_contract.capacity import LayerShape, ModelShape, bytes_per_block
from pagefleet_kernels.choice import PLAIN, Kernels
from pagefleet_kernels.page_copy import page_copy
from pagefleet_kernels.page_gather_scatter import page_gather, page_scatter
from pagefleet_kernels.pages import CppPages
from pagefleet_kernels.quantised_kv import Fp8Scales, dequantise_pages
from pagefleet_runtime.model_executor.executor import ModelExecutor
from pagefleet_runtime.model_executor.kv_cache import KVCache, stored_dtype
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.scheduler import Scheduler
from tests.kernels import cpu_libraries
from tests.runtime.builders import HASH_KEY, some_request, some_settings, step_limit
from tests.runtime.tiny_models import tiny_executor, tiny_llama_directory
from tests.runtime.tiny_tokenizer import EOS_ID

NAMES = ("int8", "fp8")
LAYERS = (LayerShape(3, 20, 12), LayerShape(1, 10, 6))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_directory(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", params=["plain", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "plain":
        return PLAIN
    folder = request.config.cache.mkdir("pagefleet-kernels")
    return Kernels(CppPages(cpu_libraries.load(cpu_libraries.tested_targets()[0], folder)))


def some_cache(name: str, block_size: int = 4) -> KVCache:
    cache = KVCache(LAYERS, 6, block_size, stored_dtype(name), fp8_scales=[Fp8Scales(0.25, 0.125)] * 2)
    cache.buffer.zero_()
    return cache


def write_block(cache: KVCache, block: int, seed: int) -> list[torch.Tensor]:
    """Return what was written, as `numbers` has it."""
    written = []
    generator = torch.Generator().manual_seed(seed)
    slots = torch.arange(block * cache.block_size, (block + 1) * cache.block_size)
    for index, layer in enumerate(LAYERS):
        sizes = (layer.key_size, layer.value_size)
        new = [torch.randn(len(slots), layer.num_kv_heads, size, generator=generator) for size in sizes]
        cache.write(index, new[0], new[1], slots)
        written += new
    return written


def numbers(cache: KVCache, block: int) -> list[torch.Tensor]:
    """What all layers' keys and values of a block stand for."""
    found = []
    for index in range(cache.num_layers):
        scales = cache.scales(index)
        assert scales is not None
        found += [pages[block] for pages in dequantise_pages(*cache.pages(index), scales)]
    return found


def same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_block_takes_what_the_arithmetic_says_and_its_parts_do_not_overlap(name: str, block_size: int) -> None:
    cache = some_cache(name, block_size)
    assert cache.bytes_per_block == bytes_per_block(ModelShape(LAYERS), name, block_size)
    written = write_block(cache, 2, seed=1)
    before = numbers(cache, 2)

    write_block(cache, 1, seed=2)
    write_block(cache, 3, seed=3)

    assert same(numbers(cache, 2), before)
    for ours, theirs in zip(before, written, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-4, atol=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_moves_a_page_moves_its_scales(name: str) -> None:
    cache = some_cache(name)
    write_block(cache, 2, seed=1)
    written = numbers(cache, 2)
    staging = torch.zeros(1, cache.bytes_per_block, dtype=torch.uint8)

    page_copy(cache.buffer, [(2, 5)], kernels=cache.kernels.pages)
    page_gather(cache.buffer, [2], staging)
    cache.buffer[2].zero_()
    page_scatter(staging, [0], cache.buffer)

    assert same(numbers(cache, 5), written) and same(numbers(cache, 0), written)


@pytest.mark.parametrize("name", NAMES)
def test_a_slot_that_nobody_wrote_is_no_number(name: str) -> None:
    cache = some_cache(name)
    cache.fill(float("nan"))

    assert all(part.isnan().all() for part in numbers(cache, 3))


def answers(
    executor: ModelExecutor, requests: Sequence[GenerationRequest], chance: random.Random
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Run the requests together; return each one's ids, and how often one was preempted."""
    cache = executor.cache
    settings = some_settings(num_blocks=cache.num_blocks, block_size=cache.block_size, eos_token_ids=(EOS_ID,))
    scheduler = Scheduler(settings, HASH_KEY)
    waiting, given, now = list(requests), dict[str, tuple[int, ...]](), 0.0
    while waiting or scheduler.has_work():
        if waiting and (chance.random() < 0.5 or not scheduler.has_work()):
            scheduler.submit(waiting.pop(0), now)
        plan = scheduler.plan(now, step_limit(chance.randrange(1, 24)))
        assert plan is not None
        result = executor.execute(plan)
        assert not result.failures
        for output in scheduler.commit(plan, result, now):
            assert output.token_id is not None
            given[output.request_id] = (*given.get(output.request_id, ()), output.token_id)
        now += 1
    return given, sum(scheduler.snapshot(now).preemptions.values())


@pytest.mark.parametrize("name", NAMES)
def test_sequences_that_share_or_were_preempted_give_what_they_give_alone(
    directory: Path, kernels: Kernels, name: str
) -> None:
    beginning = tuple(range(40, 61))
    requests = [some_request(str(i), (*beginning[: 9 + 4 * i], 7 * i, 3), 12) for i in range(4)]
    alone: dict[str, tuple[int, ...]] = {}
    for request in requests:
        fresh = tiny_executor(directory, stored=stored_dtype(name), kernels=kernels)
        alone |= answers(fresh, [request], random.Random(1))[0]
    small = tiny_executor(directory, num_blocks=14, stored=stored_dtype(name), kernels=kernels)

    together, preemptions = answers(small, requests, random.Random(2))

    assert together == alone
    assert len(set(alone.values())) > 1
    assert preemptions > 0
