"""Families of transformers as tiny random models: the right ones pass the gate, the wrong ones are refused by name."""

import pytest

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.gate import prove_structure
from pagefleet_runtime.models.support import check_class, check_config
from pagefleet_runtime.models.weights import model_class
from tests.runtime.tiny_models import RIGHT_FAMILIES, WRONG_FAMILIES, tiny_config


@pytest.mark.parametrize("family", RIGHT_FAMILIES)
def test_a_family_of_full_and_sliding_attention_passes_the_gate(family: str) -> None:
    config = tiny_config(family)

    check_config(config)
    check_class(model_class(config))
    prove_structure(config)


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
