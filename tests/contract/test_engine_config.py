"""The settings: what they accept, in which spelling, and what they say of a mistake."""

import pytest
from pydantic import ValidationError

from pagefleet_contract.engine import EngineConfig, quantity_bytes


def test_a_model_alone_is_enough() -> None:
    config = EngineConfig.model_validate({"model": {"uri": "hf://owner/name"}})
    assert config.kv_cache.budget.percent == 90
    assert config.scheduling.max_sequences == 256


def test_what_is_given_takes_the_place_of_the_default_share() -> None:
    shares = [
        EngineConfig.model_validate({"model": {"uri": "m"}, "kvCache": {"budget": budget}}).kv_cache.budget.percent
        for budget in ({}, {"memoryPercent": 50}, {"blocks": 5}, {"memory": "1Gi"})
    ]
    assert shares == [90, 50, None, None]


def test_both_spellings_mean_the_same() -> None:
    camel = {"model": {"uri": "m", "maxLength": 64}, "kvCache": {"blockSize": 8, "prefixSharing": {"mode": "Tenant"}}}
    snake = {
        "model": {"uri": "m", "max_length": 64},
        "kv_cache": {"block_size": 8, "prefix_sharing": {"mode": "Tenant"}},
    }
    assert EngineConfig.model_validate(camel) == EngineConfig.model_validate(snake)


def test_the_settings_round_trip_through_their_file() -> None:
    config = EngineConfig.model_validate({"model": {"uri": "m"}, "kvCache": {"budget": {"memory": "2Gi"}}})
    assert EngineConfig.model_validate_json(config.model_dump_json(by_alias=True)) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": {"uri": "m", "dtyp": "auto"}}, "dtyp"),
        ({"model": {"uri": "m"}, "kvCache": {"budget": {"blocks": 1, "memory": "1Gi"}}}, "blocks and memory"),
        ({"model": {"uri": "m"}, "kvCache": {"budget": {"memory": "12x"}}}, "64Gi"),
        ({"model": {"uri": "m"}, "kvCache": {"blockSize": 24}}, "blockSize"),
        ({"model": {"uri": "m", "quantization": "int8", "kernels": "numba"}}, "set model.kernels to auto or cpp"),
    ],
)
def test_a_mistake_is_refused_by_name(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EngineConfig.model_validate(values)


def test_sizes_are_bytes_with_binary_and_decimal_suffixes() -> None:
    assert [quantity_bytes(text) for text in ("5", "2k", "2Ki", "3M", "1Gi")] == [5, 2000, 2048, 3_000_000, 2**30]


def test_a_simulated_model_has_no_ranks() -> None:
    EngineConfig.model_validate({"model": {"uri": "hf://owner/name"}, "parallel": {"tensor": 2}})
    with pytest.raises(ValidationError, match=r"parallel\.tensor is 2.*simulation\.accelerator, such as 4xh100"):
        EngineConfig.model_validate({"model": {"uri": "simulated://llama-3.1-8b"}, "parallel": {"tensor": 2}})


def test_only_a_simulated_model_has_settings_of_its_simulation() -> None:
    simulation = {"accelerator": "h100"}
    EngineConfig.model_validate({"model": {"uri": "simulated://llama-3.1-8b"}, "simulation": simulation})
    EngineConfig.model_validate({"model": {"uri": "hf://owner/name"}, "simulation": {}})
    with pytest.raises(ValidationError, match=r"simulation is set, but model\.uri is hf://owner/name"):
        EngineConfig.model_validate({"model": {"uri": "hf://owner/name"}, "simulation": simulation})
