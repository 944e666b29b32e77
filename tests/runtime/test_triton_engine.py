"""The engine on Triton's kernels, in Triton's interpreter: what a GPU would run, but for the recording of graphs."""

from collections.abc import Generator

import pytest
import torch

from tests.kernels.interpreter import Interpreter
from tests.runtime.triton_engine import Recorded, padded_step, prove_family, quantised_difference, record, serve


@pytest.fixture(scope="module")
def interpreter() -> Generator[Interpreter]:
    with Interpreter() as running:
        yield running


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_requests_get_the_tokens_of_generate(interpreter: Interpreter, family: str) -> None:
    served = interpreter.run(serve, family)

    assert {name for name, _ in served.tokens} == set(served.expected)
    assert served.tokens == {key: served.expected[key[0]] for key in served.tokens}
    assert served.copies > 0
    assert served.decode_rows >= {3, 4}, "no bucket was padded, or none was full"


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_padded_step_gives_the_same_logits_and_writes_its_own_slots_alone(
    interpreter: Interpreter, num_rows: int
) -> None:
    padded = interpreter.run(padded_step, num_rows)

    assert padded.difference <= 1e-5
    assert padded.changed == padded.expected


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8], ids=str)
def test_pages_of_codes_are_read_as_plain_pytorch_reads_them(interpreter: Interpreter, stored: torch.dtype) -> None:
    # Sums in another order turn a code here and there into its neighbour.
    assert interpreter.run(quantised_difference, stored) <= 0.01


@pytest.mark.parametrize("family", ["gpt_oss", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_a_family_passes_the_gate(interpreter: Interpreter, family: str) -> None:
    interpreter.run(prove_family, family)


def test_decodes_are_recorded_and_it_is_said(interpreter: Interpreter) -> None:
    recorded = interpreter.run(record, "none")

    assert recorded == Recorded(("CUDA graphs for decodes of up to 4 rows",), (), is_bucketed=True)


@pytest.mark.parametrize(("fault", "reason"), [("stale", "refused the weights"), ("waits", "not permitted")])
def test_decodes_that_cannot_be_recorded_stay_as_they_are_and_the_cost_is_said(
    interpreter: Interpreter, fault: str, reason: str
) -> None:
    recorded = interpreter.run(record, fault)

    assert not recorded.is_bucketed and recorded.description == ()
    (note,) = recorded.notes
    assert note.startswith("decode steps run without CUDA graphs") and reason in note
