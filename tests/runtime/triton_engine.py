"""What the child process of Triton's interpreter runs: the executor and the gate on Triton's kernels. Results are small
values."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pagefleet_kernels.choice import PLAIN, Kernels
from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.quantised_kv import Fp8Scales
from pagefleet_kernels.triton_pages import TritonPages
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.bucketed_model import BucketedModel, Forward
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import pack
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.decode_graphs import record_decodes
from pagefleet_runtime.models.gate import prove_structure
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey
from pagefleet_runtime.scheduler import Scheduler
from tests.kernels.triton_checks import fresh_memory_is_nan
from tests.runtime.builders import HASH_KEY, some_request, some_settings, step_limit
from tests.runtime.tiny_models import random_model, tiny_config, tiny_executor, tiny_model
from tests.runtime.tiny_tokenizer import EOS_ID

KERNELS = Kernels(TritonPages(Chip("sm_90", 132)))
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens by request and choice, of the engine and of generate(), and how many rows its decode steps had."""

    tokens: dict[tuple[str, int], tuple[int, ...]]
    expected: dict[str, tuple[int, ...]]
    decode_rows: frozenset[int]
    copies: int


def serve(family: str) -> Served:
    """Serve requests that begin alike, come one after the other and end at different times."""
    with tempfile.TemporaryDirectory() as folder, fresh_memory_is_nan():
        directory = Path(folder)
        _model(family).save_pretrained(directory)
        oracle = tiny_model(directory)
        shared = tuple((7 * i) % 120 + 3 for i in range(37))
        waiting = [
            some_request("alone", shared[5:8], 5),
            some_request("first", shared, 3),
            some_request("second", (*shared[:30], 99, 98, 97), 5, num_choices=2),
        ]
        expected = {r.request_id: _generated(oracle, r.prompt_ids, r.params.max_tokens) for r in waiting}
        executor = tiny_executor(directory, 16, BLOCK_SIZE, kernels=KERNELS)
        scheduler = Scheduler(some_settings(num_blocks=16, block_size=BLOCK_SIZE, eos_token_ids=(EOS_ID,)), HASH_KEY)
        tokens: dict[tuple[str, int], tuple[int, ...]] = {}
        decode_rows, copies, steps = set(), 0, 0
        while waiting or scheduler.has_work():
            if waiting:
                scheduler.submit(waiting.pop(0), 0.0)
            plan = scheduler.plan(float(steps), step_limit(48))
            assert plan is not None
            result = executor.execute(plan)
            assert not result.failures, result.failures
            for output in scheduler.commit(plan, result, float(steps)):
                assert output.token_id is not None
                key = (output.request_id, output.choice_index)
                tokens[key] = (*tokens.get(key, ()), output.token_id)
            if all(len(row.token_ids) == 1 for row in plan.rows):
                decode_rows.add(len(plan.rows))
            copies += len(plan.copies)
            steps += 1
        return Served(tokens, expected, frozenset(decode_rows), copies)


def _model(family: str) -> Any:
    """Return two layers of the family, one of each kind."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if family == "gemma2" else {}
    return random_model(tiny_config(family, num_hidden_layers=2, **kinds))


def _generated(oracle: Any, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return tuple(output[0, len(prompt) :].tolist())


@dataclass(frozen=True, slots=True)
class Padded:
    """The largest difference of a padded step's logits, relative to their deviation; slots of the cache that changed,
    and those that should."""

    difference: float
    changed: frozenset[int]
    expected: frozenset[int]


def padded_step(num_rows: int) -> Padded:
    """Run a decode step of rows of different lengths in its bucket and by itself, on equal caches."""
    with fresh_memory_is_nan():
        model, cache = _model_and_cache()
        tables = [tuple(range(3 * index, 3 * index + 3)) for index in range(num_rows)]
        starts = [5 + 11 * index for index in range(num_rows)]
        prompts = zip(starts, tables, strict=True)
        model.forward(pack([_row(i, range(3, 3 + start), 0, t) for i, (start, t) in enumerate(prompts)], BLOCK_SIZE),
                      cache, torch.arange(1))  # fmt: skip
        before = cache.buffer.clone()
        packed = pack([_row(i, (40 + i,), starts[i], tables[i]) for i in range(num_rows)], BLOCK_SIZE)
        keep = torch.arange(num_rows)
        alone = model.forward(packed, cache, keep).logits.clone()
        cache.buffer.copy_(before)
        # Rows may be so long that each is cut into two splits, of which the second is empty here.
        bucketed = BucketedModel(model, cache, 4, 512, lambda forward: forward)
        assert torch.equal(cache.buffer, before), "recording touched the cache"
        padded = bucketed.forward(packed, cache, keep).logits
    difference = float((padded - alone).abs().max() / alone.std())
    return Padded(difference, _changed_slots(before, cache), frozenset(packed.slots.tolist()))


def _row(index: int, ids: Any, start: int, table: tuple[int, ...]) -> Row:
    return Row(SequenceKey(str(index), 0), tuple(ids), start, table)


def _model_and_cache(kernels: Kernels = KERNELS, stored: torch.dtype = torch.float32) -> tuple[PagedModel, KVCache]:
    register_attention()
    model = _model("llama")
    layers = observe_layers(model)
    model.set_attn_implementation(ATTENTION_NAME)
    scales = [Fp8Scales(0.02, 0.02)] * len(layers)
    cache = KVCache(layers, 16, BLOCK_SIZE, stored, kernels=kernels, fp8_scales=scales)
    cache.fill(float("nan"))
    return PagedModel(model), cache


def _changed_slots(before: torch.Tensor, cache: KVCache) -> frozenset[int]:
    """A slot is every layer's key and value of one place of a page."""
    after = cache.buffer.clone()
    changed: set[int] = set()
    for layer in range(cache.num_layers):
        for pages in cache.pages(layer):
            cache.buffer.copy_(after)
            now = pages.clone()
            cache.buffer.copy_(before)
            differs = (now.view(torch.int32) != pages.contiguous().view(torch.int32)).flatten(2).any(dim=2)
            changed.update(differs.flatten().nonzero().flatten().tolist())
    return frozenset(changed)


def quantised_difference(stored: torch.dtype) -> float:
    """Return the largest difference of a decode's logits on pages of codes from those of plain PyTorch, relative to
    their deviation."""
    decoded = []
    for kernels in (KERNELS, PLAIN):
        model, cache = _model_and_cache(kernels, stored)
        for ids, start in ((range(3, 40), 0), ((41,), 37)):
            packed = pack([_row(0, ids, start, (2, 0, 5))], BLOCK_SIZE)
            logits = model.forward(packed, cache, torch.tensor([packed.batch.num_tokens - 1])).logits
        decoded.append(logits)
    return float((decoded[0] - decoded[1]).abs().max() / decoded[1].std())


def prove_family(family: str) -> None:
    """Raise ModelRefused where the family isn't equal on Triton's kernels."""
    prove_structure(tiny_config(family), kernels=KERNELS)


@dataclass(frozen=True, slots=True)
class Recorded:
    description: tuple[str, ...]
    notes: tuple[str, ...]
    is_bucketed: bool


def record(fault: str) -> Recorded:
    """Record the decodes of a model: faultless; with replays that give the first result again; or not at all."""
    model, cache = _model_and_cache()

    def recorded(forward: Forward) -> Forward:
        if fault == "waits":
            raise RuntimeError("operation not permitted when stream is capturing")
        first = forward()
        return forward if fault == "none" else lambda: first

    graphs = record_decodes(model, cache, 4, 40, recorded)
    assert (graphs.model is model) != isinstance(graphs.model, BucketedModel)
    return Recorded(graphs.description, graphs.notes, graphs.model is not model)
