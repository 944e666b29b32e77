"""Writes, copies, gather and scatter in Triton's interpreter against their references."""

import pytest
import torch

from pagefleet_kernels.paged_attention import AttentionBatch, paged_attention
from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.pages import PLAIN_PAGES, PageKernels
from pagefleet_kernels.triton_pages import TritonPages
from tests.kernels.attention_cases import AttentionCase, make_inputs
from tests.kernels.interpreter import Interpreter
from tests.kernels.tolerances import CODES
from tests.kernels.triton_checks import WriteCheck, moved_pages, pages_after_copies, written, wrong_codes_of_every_half

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WRITES = [
    *[WriteCheck(num_tokens=37, dtype=dtype, stored=dtype) for dtype in FLOATS],
    WriteCheck(num_tokens=1, dtype=torch.bfloat16, stored=torch.bfloat16, heads=1, size=256, value_size=256),
    WriteCheck(num_tokens=150, dtype=torch.float16, stored=torch.float16, block_size=128, size=128, value_size=128),
    WriteCheck(num_tokens=19, dtype=torch.float32, stored=torch.float16, block_size=8, size=96, value_size=32),
]
QUANTISED_WRITES = [
    WriteCheck(num_tokens=tokens, dtype=dtype, stored=stored)
    for tokens in (1, 43)
    for dtype in FLOATS
    for stored in (torch.int8, torch.uint8)
]


@pytest.mark.parametrize("check", WRITES, ids=str)
def test_writes_rows_to_their_slots_and_nothing_else(interpreter: Interpreter, check: WriteCheck) -> None:
    result = interpreter.run(written, check)
    # Where dtypes differ the conversion rounds, and the interpreter's may truncate.
    assert result.difference <= (0 if check.dtype == check.stored else 2e-3)
    assert result.others_kept


@pytest.mark.parametrize("check", QUANTISED_WRITES, ids=str)
def test_writes_quantised_rows_and_their_scales(interpreter: Interpreter, check: WriteCheck) -> None:
    result = interpreter.run(written, check)
    assert result.difference <= CODES[check.stored]
    assert result.scale_difference <= 1e-6
    assert result.others_kept


def test_every_half_precision_number_gets_its_e4m3_code(interpreter: Interpreter) -> None:
    assert interpreter.run(wrong_codes_of_every_half, "cpu") == 0


@pytest.mark.parametrize(
    "copies",
    [((0, 5),), ((0, 5), (0, 6), (1, 7)), ((0, 5), (5, 6), (6, 0)), ((3, 4), (1, 3), (2, 1), (4, 2)), ()],
    ids=["one", "independent", "chain", "rotation", "none"],
)
def test_copies_are_as_if_made_in_order(interpreter: Interpreter, copies: tuple[tuple[int, int], ...]) -> None:
    got, expected = interpreter.run(pages_after_copies, copies)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("pages", [(4, 0, 7), (8,), ()], ids=str)
def test_gathered_pages_come_back_to_the_bit(interpreter: Interpreter, pages: tuple[int, ...]) -> None:
    moved = interpreter.run(moved_pages, pages)
    index = list(pages)
    assert torch.equal(moved.staging[:-1], moved.buffer[index])
    assert (moved.staging[-1] == 255).all()
    assert torch.equal(moved.restored[index], moved.buffer[index])
    others = [page for page in range(len(moved.buffer)) if page not in pages]
    assert not moved.restored[others].any()


def test_heads_that_no_tile_holds_are_plain_pytorchs_but_not_in_a_recorded_step() -> None:
    inputs = make_inputs(AttentionCase(((1, 5), (3, 9)), size=264))
    pages = TritonPages(Chip("sm_90", 1))

    def attend(kernels: PageKernels, batch: AttentionBatch) -> torch.Tensor:
        return paged_attention(
            inputs.query, inputs.key_pages, inputs.value_pages, batch, scale=inputs.scale, kernels=kernels
        )

    assert torch.equal(attend(pages, inputs.batch), attend(PLAIN_PAGES, inputs.batch))
    decodes = pages.decodes(inputs.batch.num_tokens, 2, inputs.batch.block_size, torch.device("cpu"))
    with pytest.raises(ValueError, match="no tiles for heads of 264 in groups of 3"):
        attend(pages, decodes.batch)
