"""The Triton kernels on a real GPU: results, repeatability, captured graphs, and the memory checker where it is."""

import shutil
import subprocess
import sys

import pytest
import torch

from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.paged_attention.gpu import chip_of
from tests.gpu.workloads import Step, prepare
from tests.kernels.attention_cases import AttentionCase
from tests.kernels.tolerances import ATTENTION, CODES
from tests.kernels.triton_checks import (
    AttentionCheck,
    WriteCheck,
    attention_difference,
    attention_difference_on_tables_of_fixed_size,
    moved_pages,
    pages_after_copies,
    written,
    wrong_codes_of_every_half,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]

MIXED = ((1, 90), (45, 77), (1, 1), (2, 131))
LONG = ((1, 3000), (1, 1700))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES = [
    *[AttentionCase(rows, dtype) for rows in (MIXED, LONG, ((300, 700),)) for dtype in DTYPES],
    *[AttentionCase(MIXED, torch.bfloat16, size=size) for size in (32, 80, 96, 128, 192, 256)],
    *[AttentionCase(MIXED, torch.bfloat16, block_size=size) for size in (8, 32, 128)],
    AttentionCase(MIXED, torch.bfloat16, heads=20, kv_heads=1),
    AttentionCase(MIXED, torch.bfloat16, size=192, value_size=128),
    AttentionCase(((5, 900), (200, 400)), torch.bfloat16, window=100, softcap=5.0, sinks=True),
    AttentionCase(LONG, torch.float16, window=1000, sinks=True),
]


@pytest.fixture(scope="module")
def chip() -> Chip:
    return chip_of(torch.device("cuda", 0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_the_reference(case: AttentionCase, chip: Chip) -> None:
    assert attention_difference(AttentionCheck(case, chip, device="cuda")) <= ATTENTION[case.dtype]


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("rows", [MIXED, LONG], ids=["mixed", "long"])
def test_attention_to_a_quantised_cache_equals_the_reference(
    stored: torch.dtype, rows: tuple[tuple[int, int], ...], chip: Chip
) -> None:
    check = AttentionCheck(AttentionCase(rows, torch.bfloat16), chip, stored, device="cuda")
    assert attention_difference(check) <= ATTENTION[torch.bfloat16]


def test_tables_of_fixed_size_serve_steps_of_any_size_and_padding_is_not_written() -> None:
    steps = (AttentionCase(((1, 37), (1, 600), (1, 2))), AttentionCase(((1, 3),)))
    for difference in attention_difference_on_tables_of_fixed_size(steps, "cuda"):
        assert difference <= ATTENTION[torch.float32]


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8, torch.uint8], ids=str)
def test_writes_rows_to_their_slots_and_nothing_else(stored: torch.dtype) -> None:
    result = written(WriteCheck(num_tokens=301, dtype=torch.bfloat16, stored=stored, device="cuda"))
    assert result.difference <= CODES.get(stored, 0)
    assert result.scale_difference <= 1e-6
    assert result.others_kept


def test_every_half_precision_number_gets_its_e4m3_code() -> None:
    assert wrong_codes_of_every_half("cuda") == 0


def test_copies_are_as_if_made_in_order_and_moved_pages_come_back() -> None:
    got, expected = pages_after_copies(((0, 5), (5, 6), (6, 0), (1, 7)), "cuda")
    assert torch.equal(got, expected)
    moved = moved_pages((4, 0, 7), "cuda")
    assert torch.equal(moved.restored[[4, 0, 7]], moved.buffer[[4, 0, 7]])


@pytest.mark.parametrize(
    "step",
    [
        Step("decode", ((1, 4000),) * 8),
        Step("mixed", ((1, 4000),) * 8 + ((700, 1500),)),
        Step("int8", ((1, 4000),) * 8, stored=torch.int8),
    ],
    ids=lambda step: step.name,
)
def test_the_same_step_gives_the_same_bits_every_time(step: Step, chip: Chip) -> None:
    """A race shows as a run that differs; no run has another order of additions."""
    prepared = prepare(step, chip, torch.device("cuda", 0))
    prepared.run()
    first = prepared.output.clone()
    assert not first.isnan().any()
    for _ in range(50):
        prepared.output.fill_(float("nan"))
        prepared.run()
        assert torch.equal(prepared.output, first)


def test_a_captured_graph_gives_what_a_launch_gives(chip: Chip) -> None:
    prepared = prepare(Step("decode", ((1, 4000), (1, 17))), chip, torch.device("cuda", 0))
    prepared.run()
    expected = prepared.output.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.run()
    prepared.output.fill_(float("nan"))
    graph.replay()
    assert torch.equal(prepared.output, expected)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_memory_checker_finds_nothing(tool: str) -> None:
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        pytest.skip("this machine has no compute-sanitizer")
    done = subprocess.run(
        [checker, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "tests.gpu.sanitised"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
