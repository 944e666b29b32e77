"""Families of transformers as tiny random models: the right ones pass the gate, the wrong ones are refused by name."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import pack
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.models.gate import prove_structure
from pagefleet_runtime.models.layer_shapes import observe_layers
from pagefleet_runtime.models.support import check_class, check_config
from pagefleet_runtime.models.weights import model_class
from pagefleet_runtime.plan import Row
from pagefleet_runtime.request import SequenceKey
from tests.runtime.tiny_models import RIGHT_FAMILIES, WRONG_FAMILIES, tiny_config


@pytest.mark.parametrize("family", RIGHT_FAMILIES)
def test_a_family_of_full_and_sliding_attention_passes_the_gate(family: str) -> None:
    config = tiny_config(family)

    check_config(config)
    check_class(model_class(config))
    prove_structure(config)


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
