"""The measurement of tests/gpu, tried at a small size in Triton's interpreter: figures mean nothing here."""

import pytest
import torch

from pagefleet_kernels.paged_attention.configs import Chip
from tests.gpu.engine_steps import EngineSizes, engine_lines
from tests.gpu.measure import Line, Sizes, as_markdown, measure
from tests.gpu.timing import HostStopwatch
from tests.gpu.workloads import Heads, Step
from tests.kernels.interpreter import Interpreter

TRIAL = Sizes(
    context=20, rows=2, long_context=40, prompt=30, chunk=10, copied_bytes=1 << 12, page_bytes=256, moved_pages=3,
    heads=Heads(query=4, kv=2, size=64),
)  # fmt: skip


def _measure(sizes: Sizes) -> list[Line]:
    return measure(Chip("sm_90", 4), torch.device("cpu"), HostStopwatch(), sizes)


def test_every_row_of_the_table_can_be_measured(interpreter: Interpreter) -> None:
    lines = interpreter.run(_measure, TRIAL)
    names = [line.name for line in lines]
    for name in ("decode", "decode int8", "decode fp8", "prefill", "mixed step", "page copy", "swap out"):
        assert name in names
    assert all(line.seconds > 0 for line in lines if "varlen_attn" not in line.name)
    # The vendor's kernel needs a GPU; that it is missing stands in the table instead of a figure.
    assert all(line.rate == "needs a GPU" for line in lines if "varlen_attn" in line.name)


def _time_engine(sizes: EngineSizes) -> list[Line]:
    return engine_lines(Chip("sm_90", 4), torch.device("cpu"), HostStopwatch(), sizes, lambda forward: forward)


def test_steps_of_the_engine_can_be_measured(interpreter: Interpreter) -> None:
    sizes = EngineSizes(layers=1, hidden=32, intermediate=32, heads=2, kv_heads=1, vocabulary=64, context=20, rows=(3,))
    launched, replayed = interpreter.run(_time_engine, sizes)
    assert (launched.name, replayed.name) == ("engine step, 3 rows, launched", "engine step, 3 rows, replayed")
    assert launched.seconds > 0 and replayed.seconds > 0


def test_bytes_and_operations_are_those_of_what_is_seen() -> None:
    heads = Heads(query=4, kv=2, size=64)
    assert Step("", ((1, 10), (1, 6)), heads).bytes_read == 16 * 2 * 2 * 64 * 2
    assert Step("", ((1, 10),), heads, torch.int8).bytes_read == 10 * 2 * 2 * (64 + 4)
    assert Step("", ((3, 3),), heads).operations == 4 * 4 * 64 * (1 + 2 + 3)


@pytest.mark.parametrize(("ratio", "verdict"), [(0.8, "met"), (0.7, "met"), (0.69, "missed")])
def test_the_table_says_what_was_met(ratio: float, verdict: str) -> None:
    table = as_markdown("a card", [Line("decode", 1e-3, "5.0 GB/s", ratio, "copy rate", 0.7)])
    assert table.startswith("# a card\n")
    assert f"| decode | 1000.0 us | 5.0 GB/s | {ratio:.2f} | copy rate | 0.70 | {verdict} |" in table
