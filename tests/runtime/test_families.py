"""Families of transformers as tiny random models: the right ones pass the gate, the wrong ones are refused by name."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_kernels.choice import PLAIN, Kernels, choose_kernels, with_int8_weights
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import pack
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.fused import FusedLayer
from pagefleet_runtime.models.gate import prove_structure
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.models.speed_up import speed_up
from pagefleet_runtime.models.support import check_class, check_config
from pagefleet_runtime.models.weights import mapped_bytes, model_class, uncoded_bytes, weights_bytes
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey
from tests.runtime.tiny_models import RIGHT_FAMILIES, WRONG_FAMILIES, tiny_config


@pytest.mark.parametrize("family", RIGHT_FAMILIES)
def test_a_family_of_full_and_sliding_attention_passes_the_gate(family: str) -> None:
    config = tiny_config(family)

    check_config(config)
    check_class(model_class(config))
    prove_structure(config)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    chosen = choose_kernels("auto", torch.float32, request.config.cache.mkdir("pagefleet-kernels"))
    if chosen.library is None or chosen.linears == "torch":
        pytest.skip(f"this machine has no fast kernels: {chosen.notes}")
    return chosen


@pytest.mark.parametrize("family", RIGHT_FAMILIES)
def test_a_family_passes_the_gate_with_packed_weights_and_fused_layers(family: str, kernels: Kernels) -> None:
    prove_structure(tiny_config(family), kernels=kernels)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_a_family_passes_the_gate_with_numbas_kernels(family: str, request: pytest.FixtureRequest) -> None:
    kernels = choose_kernels("numba", torch.float32, request.config.cache.mkdir("pagefleet-kernels"))
    assert kernels.pages.name == "numba"

    prove_structure(tiny_config(family), kernels=kernels)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
        ("llama", {"head_dim": 24}),
        ("mistral", {"sliding_window": None}),
        ("gemma2", {"query_pre_attn_scalar": 100}),
    ],
)
def test_fused_layers_follow_the_configuration(family: str, changes: dict[str, Any], kernels: Kernels) -> None:
    prove_structure(tiny_config(family, **changes), kernels=kernels)


def test_heads_too_large_for_the_fused_layers_leave_the_layers_alone(kernels: Kernels) -> None:
    prove_structure(tiny_config("llama", head_dim=320), kernels=kernels)


@pytest.mark.parametrize(
    ("family", "fused"),
    [*[(family, True) for family in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")], ("phi3", False)],
)
def test_only_known_families_are_fused(family: str, fused: bool, kernels: Kernels) -> None:
    model: Any = AutoModelForCausalLM.from_config(tiny_config(family))  # type: ignore[no-untyped-call]

    assert ("fused layers" in speed_up(model, kernels)) is fused
    assert any(isinstance(module, FusedLayer) for module in model.modules()) is fused
    assert not any(type(module) is torch.nn.Linear for module in model.modules())


def test_an_unknown_activation_leaves_the_layers_alone(kernels: Kernels) -> None:
    config = tiny_config("llama", hidden_act="relu")

    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]

    assert speed_up(model, kernels) == ()
    prove_structure(config, kernels=kernels)


def test_plain_kernels_change_no_module() -> None:
    model: Any = AutoModelForCausalLM.from_config(tiny_config("llama"))  # type: ignore[no-untyped-call]
    before = {name: type(module) for name, module in model.named_modules()}

    assert speed_up(model, PLAIN) == ()
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_packed_weights_are_counted_and_the_original_ones_are_gone(kernels: Kernels) -> None:
    model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        tiny_config("llama", tie_word_embeddings=False)
    )
    before, weight = weights_bytes(model), weakref.ref(model.base_model.layers[0].mlp.up_proj.weight)

    speed_up(model, kernels)

    # Norm weights are kept in float32, which they have here already.
    assert weights_bytes(model) == before
    assert weight() is None


def test_int8_weights_are_counted_as_they_lie(kernels: Kernels) -> None:
    model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        tiny_config("llama", tie_word_embeddings=False, hidden_size=128, intermediate_size=192),
        dtype=torch.bfloat16,
    )
    layers = [module for module in model.modules() if type(module) is torch.nn.Linear]
    halves, outputs = sum(layer.weight.numel() for layer in layers), sum(layer.out_features for layer in layers)
    before, norms = weights_bytes(model), 2 * 128 * (2 * len(model.base_model.layers) + 1)

    speed_up(model, with_int8_weights(kernels))

    # A byte less of each weight, a scale more for each output; norms are kept in float32.
    assert weights_bytes(model) == before - halves + 4 * outputs + norms


@pytest.mark.parametrize(("family", "all_coded"), [("llama", True), ("gpt2", False), ("mixtral", False)])
def test_what_int8_weights_leave_as_it_is_can_be_told(family: str, all_coded: bool, kernels: Kernels) -> None:
    model: Any = AutoModelForCausalLM.from_config(tiny_config(family))  # type: ignore[no-untyped-call]

    speed_up(model, with_int8_weights(kernels))

    assert (uncoded_bytes(model) == 0) is all_coded


def test_weights_in_their_files_mapping_are_told_from_those_in_memory(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 4)
    address = model.weight.data_ptr()
    maps = tmp_path / "maps"
    maps.write_text(f"{address:x}-{address + 4096:x} r--p 00000000 fe:00 7 /models/model.safetensors\n")

    assert mapped_bytes(model, maps) >= 8 * 4 * 4
    assert mapped_bytes(model, tmp_path / "none") == 0


@pytest.mark.parametrize("family", ["llama", "gemma2", "cohere2", "granite", "gpt2", "mixtral", "nemotron"])
def test_the_head_alone_gives_the_logits_of_the_whole(family: str) -> None:
    """Soft-caps and scales after the head differ from family to family."""
    register_attention()
    model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        tiny_config(family), attn_implementation=ATTENTION_NAME
    ).eval()
    layers = observe_layers(model)
    model.set_attn_implementation(ATTENTION_NAME)
    packed = pack([Row(SequenceKey("a", 0), tuple(range(9)), 0, (2, 0, 1))], block_size=4)
    paged = PagedModel(model)

    whole = paged.forward(packed, KVCache(layers, 3, 4, torch.float32), torch.arange(9))

    assert torch.allclose(paged.head(whole, torch.tensor([3, 8])), whole.logits[[3, 8]], atol=1e-6)


@pytest.mark.parametrize("family", WRONG_FAMILIES)
def test_a_family_with_other_layers_is_refused_by_name(family: str) -> None:
    config = tiny_config(family)

    with pytest.raises(ModelRefused, match=WRONG_FAMILIES[family][1]):
        check_config(config)
        check_class(model_class(config))


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, "dynamic"),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
            },
            "longrope",
        ),
    ],
)
def test_rope_that_follows_the_batch_is_refused(rope: dict[str, object], named: str) -> None:
    with pytest.raises(ModelRefused, match=f"{named}.*other requests"):
        check_config(tiny_config("llama", rope_parameters=rope))


@pytest.mark.parametrize("rope_type", ["linear", "yarn", "llama3"])
def test_rope_that_is_fixed_passes_the_gate(rope_type: str) -> None:
    rope = {
        "rope_type": rope_type,
        "factor": 4.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    if rope_type != "llama3":
        rope = {key: value for key, value in rope.items() if not key.endswith("freq_factor")}
    config = tiny_config("llama", rope_parameters=rope)

    check_config(config)
    prove_structure(config)


def test_a_quantised_checkpoint_is_refused_with_what_to_do() -> None:
    config = tiny_config("llama", quantization_config={"quant_method": "awq"})

    with pytest.raises(ModelRefused, match="quantised \\(awq\\); serve one in bfloat16"):
        check_config(config)
