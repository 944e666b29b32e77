"""The engine on Triton's kernels, in Triton's interpreter: what a GPU would run, but for the recording of graphs."""

from collections.abc import Generator

import pytest

from pagefleet_runtime.errors import ModelRefused
from tests.kernels.interpreter import Interpreter
from tests.runtime.triton_engine import padded_step, prove_family, prove_recorded_buckets, serve


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


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3"])
def test_a_family_passes_the_gate(interpreter: Interpreter, family: str) -> None:
    interpreter.run(prove_family, family)


def test_buckets_that_replay_something_else_are_refused(interpreter: Interpreter) -> None:
    interpreter.run(prove_recorded_buckets, False)
    with pytest.raises(ModelRefused, match="refused the weights"):
        interpreter.run(prove_recorded_buckets, True)
