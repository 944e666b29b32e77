"""Whether a model fits is decided from bytes, and False only where no replica could start."""

from dataclasses import replace
from typing import Any

import pytest

from pagefleet_contract.capacity import ModelWidths
from pagefleet_contract.known_models import find_known_model
from pagefleet_contract.service_settings import service_settings
from pagefleet_operator.fit import Fit, judge_fit
from pagefleet_operator.observed import ModelFacts
from pagefleet_runtime.simulation.loading import load_simulated
from tests.operator.builders import LLAMA_8B, LLAMA_70B, REAL, SIMULATED, spec


def fit(model: ModelFacts, base: Any = REAL, /, *, proven: bool = False, **fields: Any) -> Fit:
    wanted = spec(base, **fields)
    return judge_fit(wanted, service_settings("chat", wanted).config, model, proven=proven)


def test_a_model_that_fits_says_blocks_tokens_and_sequences() -> None:
    found = fit(LLAMA_8B)
    assert (found.status, found.reason) == ("True", "Fits")
    # 80 GiB x 90 % - 16,060,522,496 B of weights, by blocks of 16 x 131,072 B and a layer's part for attention's copies
    blocks = (80 * 2**30 * 90 // 100 - 16_060_522_496) // (16 * (131_072 + 4096))
    assert f"hold at most {blocks} KV blocks of 2 MiB, {blocks * 16} tokens, 3 sequences of 131072" in found.message


@pytest.mark.parametrize(("stored", "token_bytes"), [("fp8", 65_536), ("int8", 67_584)])
def test_keys_and_values_in_eight_bits_make_more_blocks(stored: str, token_bytes: int) -> None:
    wanted = spec(REAL, kvCache={"dtype": stored})
    settings = service_settings("chat", wanted)
    assert (settings.config.kv_cache.dtype, settings.notes) == (stored, service_settings("chat", spec(REAL)).notes)
    blocks = (80 * 2**30 * 90 // 100 - 16_060_522_496) // (16 * (token_bytes + token_bytes // 32))
    found = fit(LLAMA_8B, kvCache={"dtype": stored})
    assert f"hold at most {blocks} KV blocks" in found.message


def test_a_model_that_does_not_fit_says_the_bytes_and_what_would() -> None:
    found = fit(LLAMA_70B)
    assert (found.status, found.reason) == ("False", "DoesNotFit")
    for told in ("131 GiB of weights and 5.06 MiB for one KV block", "90 % of 80 GiB (accelerator.memory) are 72 GiB"):
        assert told in found.message
    assert "It would fit in 147Gi of memory" in found.message
    assert fit(LLAMA_70B, accelerator={"memory": "147Gi"}).status == "True"
    assert fit(LLAMA_70B, accelerator={"memory": "145Gi"}).status == "False"


def test_what_a_step_needs_is_set_aside_as_a_replica_does() -> None:
    wide = replace(LLAMA_8B, widths=ModelWidths(128_256, 4096, 14_336))
    # 2048 x (8 x 4096 + 3 x 14336) x 2, and 128256 x (256 x (2 + 8) + 64 x 8)
    workspace = 310_378_496 + 394_002_432
    blocks = (80 * 2**30 * 90 // 100 - 16_060_522_496 - workspace) // (16 * (131_072 + 4096))
    assert f"beside 15 GiB of weights and 672 MiB of workspace 80 GiB (accelerator.memory) hold at most {blocks}" in (
        fit(wide).message
    )
    tight = {"memory": "17Gi"}
    assert fit(LLAMA_8B, accelerator=tight).status == "True"
    refused = fit(wide, accelerator=tight)
    assert refused.status == "False"
    assert "15 GiB of weights and 672 MiB of workspace" in refused.message
    assert fit(wide, accelerator=tight, scheduling={"maxBatchTokens": 256, "maxSequences": 16}).status == "True"


def test_a_fixed_budget_leaves_what_a_step_needs() -> None:
    wide = replace(LLAMA_8B, widths=ModelWidths(128_256, 4096, 14_336))
    budget = {"budget": {"blocks": 33_301}}
    assert fit(LLAMA_8B, kvCache=budget).status == "True"
    assert "672 MiB of workspace, more than 80 GiB" in fit(wide, kvCache=budget).message


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b"])
def test_the_blocks_that_would_fit_are_those_that_a_replica_makes(name: str) -> None:
    known = find_known_model(f"simulated://{name}")
    assert known is not None
    facts = ModelFacts(
        known.shape, known.weights_bytes, known.max_length, "a test", dtype=known.dtype, widths=known.widths
    )
    played: dict[str, Any] = {"model": {"uri": f"simulated://{name}"}, "simulation": {"accelerator": "h100"}}
    found = fit(facts, SIMULATED, **played)
    config = service_settings("chat", spec(SIMULATED, **played)).config
    made = load_simulated(config, lambda progress: None, lambda seconds: False).info.num_blocks
    assert f"hold at most {made} KV blocks" in found.message


def test_int8_weights_take_half_of_bfloat16s() -> None:
    small = {"resource": "cpu", "memory": "12Gi"}
    model = {"uri": "hf://acme/llama"}
    assert fit(LLAMA_8B, model=model, accelerator=small).status == "False"
    found = fit(LLAMA_8B, model={**model, "quantization": "int8"}, accelerator=small)
    assert found.status == "True" and "beside 7.48 GiB of weights" in found.message


def test_a_share_that_is_too_small_says_which_would_do() -> None:
    found = fit(LLAMA_8B, accelerator={"memory": "16Gi"}, kvCache={"budget": {"memoryPercent": 90}})
    assert found.status == "False"
    assert "or with kvCache.budget.memoryPercent 94 or more" in found.message
    assert fit(LLAMA_8B, accelerator={"memory": "16Gi"}, kvCache={"budget": {"memoryPercent": 94}}).status == "True"
    assert fit(LLAMA_8B, accelerator={"memory": "16Gi"}, kvCache={"budget": {"memoryPercent": 93}}).status == "False"


def test_float32_doubles_the_weights_and_the_message_says_what_halves_them() -> None:
    found = fit(LLAMA_8B, model={"uri": "hf://acme/llama", "dtype": "float32"}, accelerator={"memory": "24Gi"})
    assert found.status == "False"
    assert "29.9 GiB of weights" in found.message
    assert "with model.dtype bfloat16" in found.message


def test_weights_stored_in_float32_take_half_where_they_are_loaded_in_bfloat16() -> None:
    stored = ModelFacts(LLAMA_8B.shape, 2 * (LLAMA_8B.weights_bytes or 0), None, "a test", dtype="float32")
    loaded = {"uri": "hf://acme/llama", "dtype": "bfloat16"}
    assert fit(stored, model=loaded, accelerator={"memory": "24Gi"}).status == "True"
    assert fit(stored, accelerator={"memory": "24Gi"}).status == "False"


@pytest.mark.parametrize(
    ("budget", "status", "told"),
    [
        ({"blocks": 100}, "True", "100 KV blocks"),
        ({"blocks": 40_000}, "False", "At most 33301 blocks"),
        ({"memory": "10Gi"}, "True", "5120 KV blocks"),
        ({"memory": "79Gi"}, "False", "40448 KV blocks take 79 GiB beside 15 GiB of weights, more than 80 GiB"),
        ({"memory": "1Mi"}, "False", "give 2 MiB, one block, or more"),
    ],
)
def test_fixed_budgets_are_held_against_the_memory(budget: Any, status: str, told: str) -> None:
    found = fit(LLAMA_8B, kvCache={"budget": budget})
    assert found.status == status
    assert told in found.message


@pytest.mark.parametrize(
    ("model", "fields", "reason", "told"),
    [
        (ModelFacts(fault="the hub wasn't reached"), {}, "ModelUnknown", "the hub wasn't reached"),
        (ModelFacts(), {}, "ModelUnknown", "nothing is known about hf://acme/llama"),
        (LLAMA_8B, {"accelerator": {}}, "MemoryUnknown", "one nvidia.com/gpu has"),
        (LLAMA_8B, {"accelerator": {"resource": "cpu"}}, "MemoryUnknown", "a replica takes what its node has"),
    ],
)
def test_what_is_not_known_lets_the_first_replica_tell(model: ModelFacts, fields: Any, reason: str, told: str) -> None:
    found = fit(model, **fields)
    assert (found.status, found.reason) == ("Unknown", reason)
    assert told in found.message and "the first replica will tell" in found.message
    assert fit(model, **fields, proven=True).status == "True"


def test_a_replica_that_runs_outweighs_arithmetic_and_arithmetic_that_agrees_keeps_its_figures() -> None:
    assert fit(LLAMA_70B, proven=True).reason == "ReplicaRuns"
    assert fit(LLAMA_8B, proven=True).reason == "Fits"


def test_a_cpu_replica_is_held_against_its_containers_limit() -> None:
    assert fit(LLAMA_8B, accelerator={"resource": "cpu", "count": 8, "memory": "8Gi"}).status == "False"
    assert fit(LLAMA_8B, accelerator={"resource": "cpu", "count": 8, "memory": "32Gi"}).status == "True"


def test_what_the_processes_of_a_cpu_replica_hold_is_no_room_for_blocks() -> None:
    def on(memory: str, resource: str = "cpu", **fields: Any) -> Fit:
        return fit(LLAMA_8B, accelerator={"resource": resource, "memory": memory}, **fields)

    # 15 GiB of weights and a block of 2 MiB would fit; 768 MiB of server and engine don't beside them.
    whole: Any = {"kvCache": {"budget": {"memoryPercent": 100}}}
    refused = on("15500Mi", **whole)
    assert (refused.status, refused.reason) == ("False", "DoesNotFit")
    assert "15 GiB of weights and 768 MiB of the processes themselves" in refused.message
    assert on("16200Mi", **whole).status == "True"
    assert on("15500Mi", "nvidia.com/gpu", **whole).status == "True"
    fixed: Any = {"kvCache": {"budget": {"blocks": 10}}}
    assert (on("15500Mi", **fixed).status, on("15500Mi", "nvidia.com/gpu", **fixed).status) == ("False", "True")


def test_several_accelerators_hold_a_share_each() -> None:
    found = fit(LLAMA_70B, accelerator={"count": 2, "memory": "80Gi"})
    assert (found.status, found.reason) == ("True", "Fits")
    # half of 131 GiB of weights, and blocks with 4 of 8 key-value heads
    assert (
        "beside 65.7 GiB of weights 80 GiB (accelerator.memory, of each of 2, which share the model)" in found.message
    )
    assert "KV blocks of 2.5 MiB" in found.message
    assert fit(LLAMA_70B, accelerator={"count": 2, "memory": "72Gi"}).reason == "DoesNotFit"


def test_a_fixed_budget_is_the_replicas_and_counts_on_all_its_accelerators() -> None:
    found = fit(LLAMA_8B, accelerator={"count": 4, "memory": "80Gi"}, kvCache={"budget": {"memory": "10Gi"}})
    assert "hold at most 5120 KV blocks of 512 KiB" in found.message


def test_accelerators_that_do_not_divide_the_heads_are_refused_with_those_that_do() -> None:
    found = fit(LLAMA_70B, accelerator={"count": 3, "memory": "80Gi"})
    assert (found.status, found.reason) == ("False", "ParallelismUnsupported")
    assert "accelerator.count is 3, but the model has 8 key-value heads" in found.message
    assert "set accelerator.count to 1 or 2 or 4 or 8" in found.message
    assert fit(LLAMA_70B, accelerator={"count": 3, "memory": "80Gi"}, proven=True).status == "False"


def test_a_simulated_model_fits_what_is_played() -> None:
    assert fit(LLAMA_70B, SIMULATED).reason == "MemoryUnknown"
    assert fit(LLAMA_70B, SIMULATED, simulation={"accelerator": "h100"}).status == "False"
    assert fit(LLAMA_70B, SIMULATED, simulation={"accelerator": "4xh100"}).status == "True"
    assert fit(LLAMA_70B, SIMULATED, simulation={"memory": "160Gi"}).status == "True"
    assert fit(LLAMA_70B, SIMULATED, accelerator={"count": 4}, simulation={"accelerator": "4xh100"}).status == "True"


def test_what_a_simulated_model_would_be_refused_for_it_is_refused_for() -> None:
    three = fit(LLAMA_70B, SIMULATED, accelerator={"count": 3}, simulation={"accelerator": "4xh100"})
    assert (three.status, three.reason) == ("False", "ParallelismUnsupported")
    unknown = fit(ModelFacts(fault="?"), SIMULATED, model={"uri": "simulated://llama-71b"})
    assert (unknown.status, unknown.reason) == ("False", "ModelUnknown")
    assert "llama-3.1-70b" in unknown.message


def test_on_a_cpu_the_pods_own_limit_is_the_memory() -> None:
    def on_a_cpu(limit: str) -> Fit:
        return fit(
            LLAMA_8B,
            accelerator={"resource": "cpu", "memory": "4Gi"},
            podTemplate={"resources": {"limits": {"memory": limit}}},
        )

    assert (on_a_cpu("64Gi").status, on_a_cpu("8Gi").status) == ("True", "False")
    assert "podTemplate.resources.limits.memory" in on_a_cpu("8Gi").message
    assert on_a_cpu("64.5Gi").reason == "MemoryUnknown"
