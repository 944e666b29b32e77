"""The table of well-known models: each row's figures agree with each other, and with what is known of the model."""

from dataclasses import replace

import pytest

from pagefleet_contract.capacity import bytes_per_token
from pagefleet_contract.known_models import KNOWN_MODELS, KnownModel, find_known_model, names_of_known_models

_BIASED = ("qwen2",)
_NORMED_HEADS = ("qwen3", "qwen3_moe", "gemma3_text")
_FOUR_NORMS = ("gemma2", "gemma3_text")


def counted_parameters(model: KnownModel) -> int:
    """Count the weights of a decoder with these sizes."""
    hidden, wide, narrow = model.hidden_size, model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    attention = 2 * hidden * wide + 2 * hidden * narrow
    if model.model_type in _BIASED:
        attention += wide + 2 * narrow
    if model.model_type in _NORMED_HEADS:
        attention += 2 * model.head_size
    feed_forward = 3 * hidden * model.intermediate_size
    if model.experts is not None:
        feed_forward = feed_forward * model.experts.per_layer + hidden * model.experts.per_layer
    norms = hidden * (4 if model.model_type in _FOUR_NORMS else 2)
    embeddings = model.vocab_size * hidden * (1 if model.ties_embeddings else 2)
    return embeddings + model.num_layers * (attention + feed_forward + norms) + hidden


@pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda model: model.name)
def test_the_sizes_give_the_parameters(model: KnownModel) -> None:
    assert counted_parameters(model) == model.parameters


@pytest.mark.parametrize(
    ("name", "bytes_of_a_token"),
    [
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-405b", 516_096),
        ("llama-2-7b", 524_288),
        ("qwen2.5-7b", 57_344),
        ("qwen3-30b-a3b", 98_304),
        ("smollm2-135m", 23_040),
        ("gemma-3-1b", 26_624),
    ],
)
def test_a_tokens_keys_and_values_take_what_is_published(name: str, bytes_of_a_token: int) -> None:
    model = find_known_model(name)
    assert model is not None and bytes_per_token(model.shape, model.dtype) == bytes_of_a_token


@pytest.mark.parametrize(("name", "num_bytes"), [("smollm2-135m", 191_138_112), ("llama-3.1-8b", 8_555_597_824)])
def test_int8_halves_what_is_multiplied_and_leaves_the_embedding(name: str, num_bytes: int) -> None:
    model = find_known_model(name)

    assert model is not None and replace(model, quantization="int8").weights_bytes == num_bytes


def test_each_name_means_one_model() -> None:
    names = [name.lower() for model in KNOWN_MODELS for name in (model.name, *model.hub_ids)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "uri",
    [
        "simulated://llama-3.1-70b",
        "hf://meta-llama/Llama-3.1-70B-Instruct",
        "simulated://meta-llama/Llama-3.1-70B-Instruct",
        "Llama-3.1-70B",
    ],
)
def test_a_model_is_found_by_name_and_by_hub_id(uri: str) -> None:
    found = find_known_model(uri)
    assert found is not None and found.name == "llama-3.1-70b"


@pytest.mark.parametrize("uri", ["simulated://", "simulated://gpt-2", "file:///llama-3.1-70b", ""])
def test_other_models_are_unknown(uri: str) -> None:
    assert find_known_model(uri) is None


def test_a_token_passes_through_few_of_a_mixtures_parameters() -> None:
    mixtral, dense = find_known_model("mixtral-8x7b"), find_known_model("llama-3.1-8b")
    assert mixtral is not None and dense is not None
    assert round(mixtral.active_parameters / 1e9, 1) == 12.9
    assert dense.active_parameters == dense.parameters


def test_no_more_layers_have_windows_than_there_are() -> None:
    assert all(model.windows is None or 0 < model.windows.num_layers <= model.num_layers for model in KNOWN_MODELS)


def test_of_an_unknown_name_the_one_that_is_meant_is_told() -> None:
    assert names_of_known_models("simulated://lama-3.1-8b").endswith("; did you mean llama-3.1-8b?")
    assert "did you mean" not in names_of_known_models("simulated://something-of-my-own")
