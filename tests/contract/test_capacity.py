"""Bytes, blocks, tokens and sequences, held against published numbers."""

import pytest

from pagefleet_contract.capacity import (
    LayerShape,
    MemorySplit,
    ModelShape,
    ModelWidths,
    block_cap,
    blocks_for,
    blocks_in,
    bytes_per_block,
    bytes_per_token,
    describe_bytes,
    expected_waste_fraction,
    reserving_waste_fraction,
    sequences_in,
    workspace_bytes,
)

LLAMA_70B = ModelShape.uniform(num_layers=80, num_kv_heads=8, head_size=128)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (LLAMA_70B, "bfloat16", 327_680),
        (ModelShape.uniform(30, 3, 64), "bfloat16", 23_040),  # SmolLM2 135M
        (ModelShape.uniform(30, 3, 64), "float32", 46_080),
        (ModelShape.uniform(18, 1, 256), "float16", 18_432),  # Gemma 3 270M
        (ModelShape.uniform(2, 4, 192, value_size=128), "bfloat16", 2 * 4 * 320 * 2),
        (ModelShape((LayerShape(1, 8, 8), LayerShape(2, 16, 4))), "float32", (16 + 40) * 4),
        (ModelShape.uniform(30, 3, 64), "fp8", 11_520),
        # A code for each number, and a float32 for each of 3 keys and 3 values.
        (ModelShape.uniform(30, 3, 64), "int8", 30 * (3 * 128 + 6 * 4)),
        (LLAMA_70B, "int8", 163_840 + 80 * 16 * 4),
    ],
)
def test_bytes_of_a_token_are_what_is_stored(shape: ModelShape, dtype: str, expected: int) -> None:
    assert bytes_per_token(shape, dtype) == expected
    assert bytes_per_block(shape, dtype, 16) == 16 * expected


def test_scales_lie_where_their_type_wants_them_in_blocks_of_any_size() -> None:
    odd = ModelShape((LayerShape(1, 10, 7), LayerShape(3, 6, 6)))

    assert bytes_per_block(odd, "int8", 1) == 32 + 64  # of 17 + 8 and 36 + 24
    assert bytes_per_block(odd, "int8", 4) == 112 + 240  # of 4 · 25 and 4 · 60


def test_256_users_of_4096_tokens_take_what_the_design_says() -> None:
    assert 256 * 4096 * bytes_per_token(LLAMA_70B, "bfloat16") == 343_597_383_680


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ValueError, match="'float64'; a KV cache stores bfloat16"):
        bytes_per_token(LLAMA_70B, "float64")


@pytest.mark.parametrize(("budget", "expected"), [(1000, 10), (1099, 10), (99, 0), (-5, 0)])
def test_a_budget_holds_whole_blocks(budget: int, expected: int) -> None:
    assert blocks_in(budget, 100) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (16, 1), (17, 2), (4096, 256)])
def test_a_sequence_takes_blocks_up_to_its_last_token(tokens: int, expected: int) -> None:
    assert blocks_for(tokens, 16) == expected


def test_sequences_share_no_block() -> None:
    assert sequences_in(10, 17, 16) == 5
    assert sequences_in(10, 16, 16) == 10


def test_waste_is_half_a_block_a_sequence() -> None:
    assert expected_waste_fraction(375, 16) == pytest.approx(0.0196, abs=1e-4)
    assert expected_waste_fraction(375, 1) == 0
    assert reserving_waste_fraction(300, 4096) == pytest.approx(0.927, abs=1e-3)


def test_the_share_of_memory_is_for_weights_workspace_and_blocks_together() -> None:
    split = MemorySplit(limit_bytes=1000, percent=90, weights_bytes=500, workspace_bytes=100)

    assert split.kv_bytes == 300


def test_more_blocks_than_all_sequences_can_hold_are_never_needed() -> None:
    assert block_cap(max_sequences=4, max_length_tokens=100, block_size=16) == 28


def test_workspace_grows_with_tokens_and_sampled_rows() -> None:
    def bytes_of(step_tokens: int, max_sequences: int) -> int:
        return workspace_bytes(
            ModelWidths(vocab_size=1000, hidden_size=64, intermediate_size=128),
            batch_tokens=step_tokens,
            max_sequences=max_sequences,
            value_bytes=2,
        )

    assert bytes_of(256, 8) < bytes_of(512, 8) < bytes_of(512, 16)
    assert bytes_of(8, 8) == bytes_of(8, 1000)


def test_workspace_without_a_fixed_budget_of_tokens_is_that_of_a_large_step() -> None:
    widths = ModelWidths(vocab_size=1000, hidden_size=64, intermediate_size=128)
    free, fixed = (
        workspace_bytes(widths, batch_tokens=tokens, max_sequences=8, value_bytes=2) for tokens in (None, 2048)
    )
    assert free == fixed


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(512, "512 B"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB"), (2**30, "1 GiB"), (1023 * 2**20, "1023 MiB")],
)
def test_bytes_are_described_for_people(num_bytes: int, expected: str) -> None:
    assert describe_bytes(num_bytes) == expected
