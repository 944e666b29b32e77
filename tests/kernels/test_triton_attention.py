"""The attention kernel in Triton's interpreter against the reference, and what the host decides for it."""

import pytest
import torch

from pagefleet_kernels.paged_attention.configs import FAMILIES, Chip
from tests.kernels.attention_cases import AttentionCase
from tests.kernels.interpreter import Interpreter
from tests.kernels.tolerances import ATTENTION
from tests.kernels.triton_checks import (
    AttentionCheck,
    attention_difference,
    attention_difference_on_tables_of_fixed_size,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALL = Chip("sm_90", 1)
# With so many processors a few programs are cut into as many splits as their keys allow.
WIDE = Chip("sm_90", 132)

DECODE = ((1, 37), (1, 1), (1, 64), (1, 129))
PREFILL = ((33, 33), (70, 70))
CHUNK = ((21, 150), (64, 203))
MIXED = ((1, 90), (45, 77), (1, 1), (2, 131))
# Chunks that begin where a tile of 64 keys is full but for one, just full, and full and one.
EDGES = ((70, 132), (70, 133), (70, 134))
LONG = ((1, 700), (1, 30))

CHECKS = [
    *[AttentionCheck(AttentionCase(rows, dtype), SMALL) for rows in (DECODE, PREFILL, MIXED) for dtype in DTYPES],
    *[AttentionCheck(AttentionCase(LONG, dtype, kv_heads=1), WIDE) for dtype in DTYPES],
    *[AttentionCheck(AttentionCase(MIXED, size=size), SMALL) for size in (32, 48, 80, 96, 112, 128, 192, 256)],
    *[AttentionCheck(AttentionCase(MIXED, block_size=size), SMALL) for size in (8, 32, 128)],
    *[AttentionCheck(AttentionCase(CHUNK, kv_heads=heads), SMALL) for heads in (1, 3, 6)],
    AttentionCheck(AttentionCase(MIXED, heads=20, kv_heads=1), SMALL),
    AttentionCheck(AttentionCase(MIXED, size=192, value_size=128), SMALL),
    AttentionCheck(AttentionCase(DECODE, size=64, value_size=96), SMALL),
    AttentionCheck(AttentionCase(EDGES, torch.float16), SMALL),
    AttentionCheck(AttentionCase(CHUNK, window=19), SMALL),
    AttentionCheck(AttentionCase(MIXED, window=1), SMALL),
    AttentionCheck(AttentionCase(((1, 1400), (3, 900)), window=700), WIDE),
    AttentionCheck(AttentionCase(MIXED, softcap=3.0), SMALL),
    AttentionCheck(AttentionCase(MIXED, sinks=True), SMALL),
    AttentionCheck(AttentionCase(LONG, sinks=True), WIDE),
    # More splits than are merged at once.
    AttentionCheck(AttentionCase(((1, 9000),), torch.float16, kv_heads=1), WIDE),
    AttentionCheck(AttentionCase(((2, 900), (1, 600)), torch.bfloat16, window=600, softcap=5.0, sinks=True), WIDE),
    AttentionCheck(AttentionCase(((30, 650),), torch.float16, heads=4, kv_heads=1, softcap=5.0), WIDE),
    *[AttentionCheck(AttentionCase(MIXED, torch.float16), Chip(family, 1)) for family in FAMILIES],
]
QUANTISED = [
    *[
        AttentionCheck(AttentionCase(rows, dtype), SMALL, stored)
        for rows in (DECODE, MIXED)
        for dtype in DTYPES
        for stored in (torch.int8, torch.uint8)
    ],
    AttentionCheck(AttentionCase(LONG, torch.bfloat16, kv_heads=1, size=80), WIDE, torch.int8),
    AttentionCheck(AttentionCase(LONG, torch.float16, softcap=4.0, sinks=True), WIDE, torch.uint8),
    AttentionCheck(AttentionCase(CHUNK, window=30, block_size=8), SMALL, torch.int8),
]


@pytest.mark.parametrize("check", [*CHECKS, *QUANTISED], ids=str)
def test_attention_equals_the_reference(interpreter: Interpreter, check: AttentionCheck) -> None:
    assert interpreter.run(attention_difference, check) <= ATTENTION[check.case.dtype]


def test_tables_of_fixed_size_serve_steps_of_any_size_and_padding_is_not_written(interpreter: Interpreter) -> None:
    steps = (
        AttentionCase(((1, 37), (1, 600), (1, 2))),
        AttentionCase(((1, 3),)),
        AttentionCase(((1, 90), (1, 17), (1, 1), (1, 16), (1, 31))),
    )
    for difference in interpreter.run(attention_difference_on_tables_of_fixed_size, steps):
        assert difference <= ATTENTION[torch.float32]
