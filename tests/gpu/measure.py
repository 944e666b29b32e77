"""Time decode, prefill, swap and copies against this card's own copy rate and against the vendor's attention.

`measure` returns a table; `python -m tests.gpu.run` writes it with the card's name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from pagefleet_kernels.page_copy.gpu import as_words, copies_launch, page_indexes
from pagefleet_kernels.paged_attention.configs import Chip
from tests.gpu.timing import GpuStopwatch, HostStopwatch
from tests.gpu.vendor import vendor_seconds
from tests.gpu.workloads import Heads, Step, prepare

Clock = GpuStopwatch | HostStopwatch


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the measurement is. The defaults are for a data-centre card; a trial takes less."""

    context: int = 2048
    rows: int = 32
    long_context: int = 32768
    prompt: int = 4096
    chunk: int = 512
    copied_bytes: int = 1 << 30
    page_bytes: int = 1 << 20
    moved_pages: int = 256
    heads: Heads = field(default_factory=Heads)


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table; `ratio` of `compared` is what has a goal."""

    name: str
    seconds: float
    rate: str
    ratio: float | None = None
    compared: str = ""
    must: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second, measured first: a device copy reads and writes, so it counts twice."""

    device: float
    to_host: float


def measure(chip: Chip, device: torch.device, clock: Clock, sizes: Sizes) -> list[Line]:
    """Measure everything, copies first. Ratios to the copy rate are those of bytes moved."""
    rates, lines = _copy_rates(device, clock, sizes)
    for step, must in _decodes(sizes):
        lines += _decode_lines(step, must, rates, chip, device, clock)
    lines += _compared_decodes(lines)
    for step, must in _prefills(sizes):
        lines += _prefill_lines(step, must, chip, device, clock)
    return [*lines, *_page_lines(rates, device, clock, sizes)]


def _copy_rates(device: torch.device, clock: Clock, sizes: Sizes) -> tuple[Rates, list[Line]]:
    source = torch.ones(sizes.copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = clock.seconds(lambda: target.copy_(source))
    part = source[: sizes.copied_bytes // 4]
    host = torch.empty(part.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    to_host = clock.eager_seconds(lambda: host.copy_(part, non_blocking=True))
    rates = Rates(device=2 * sizes.copied_bytes / seconds, to_host=part.numel() / to_host)
    return rates, [
        Line("copy on the device", seconds, _bandwidth(rates.device)),
        Line("copy to pinned memory", to_host, _bandwidth(rates.to_host)),
    ]


def _decodes(sizes: Sizes) -> list[tuple[Step, float | None]]:
    """Steps of one query a row, and the share of the copy rate that each must reach."""
    uniform = ((1, sizes.context),) * sizes.rows
    skewed = ((1, sizes.long_context), *((1, sizes.context // 2),) * (sizes.rows - 1))
    return [
        (Step("decode", uniform, sizes.heads), 0.7),
        (Step("decode int8", uniform, sizes.heads, torch.int8), None),
        (Step("decode fp8", uniform, sizes.heads, torch.uint8), None),
        (Step("decode, one long row", ((1, sizes.long_context),), sizes.heads), 0.6),
        (Step("decode, one long among short", skewed, sizes.heads), None),
        (Step("decode, blocks of 128", uniform, sizes.heads, block_size=128), 0.7),
    ]


def _decode_lines(
    step: Step, must: float | None, rates: Rates, chip: Chip, device: torch.device, clock: Clock
) -> list[Line]:
    seconds = clock.seconds(prepare(step, chip, device).run)
    rate = step.bytes_read / seconds
    line = Line(step.name, seconds, _bandwidth(rate), rate / rates.device, "copy rate", must)
    return [line, _vendor_line(step, seconds, 0.8, chip, device, clock)]


def _compared_decodes(lines: list[Line]) -> list[Line]:
    found = {line.name: line for line in lines}
    plain, skewed = found["decode"], found["decode, one long among short"]
    eight_bits = [
        Line(f"{name} / decode", found[name].seconds, "", found[name].seconds / plain.seconds, "time (at most 0.65)")
        for name in ("decode int8", "decode fp8")
    ]
    assert plain.ratio is not None and skewed.ratio is not None
    return [
        *eight_bits,
        Line("skewed / uniform lengths", skewed.seconds, "", skewed.ratio / plain.ratio, "rate of uniform", 0.75),
    ]


def _prefills(sizes: Sizes) -> list[tuple[Step, float | None]]:
    """Steps with chunks, and the share of the vendor's speed that each must reach."""
    decodes = ((1, sizes.context),) * (sizes.rows - 1)
    return [
        (Step("prefill", ((sizes.prompt, sizes.prompt),) * 2, sizes.heads), 0.6),
        (Step("chunk of a long prompt", ((sizes.chunk, sizes.long_context),), sizes.heads), None),
        (Step("prefill fp8", ((sizes.prompt, sizes.prompt),) * 2, sizes.heads, torch.uint8), None),
        (Step("mixed step", (*decodes, (sizes.chunk, sizes.prompt)), sizes.heads), None),
    ]


def _prefill_lines(step: Step, must: float | None, chip: Chip, device: torch.device, clock: Clock) -> list[Line]:
    seconds = clock.seconds(prepare(step, chip, device).run)
    rate = f"{step.operations / seconds / 1e12:.1f} TFLOP/s"
    return [Line(step.name, seconds, rate), _vendor_line(step, seconds, must, chip, device, clock)]


def _vendor_line(
    step: Step, seconds: float, must: float | None, chip: Chip, device: torch.device, clock: Clock
) -> Line:
    vendor = vendor_seconds(step, chip, device, clock)
    if isinstance(vendor, str):
        return Line(f"{step.name}, torch varlen_attn", 0.0, vendor)
    return Line(f"{step.name}, torch varlen_attn", vendor, "", vendor / seconds, "its speed", must)


def _page_lines(rates: Rates, device: torch.device, clock: Clock, sizes: Sizes) -> list[Line]:
    pages = sizes.moved_pages
    buffer = torch.ones(2 * pages, sizes.page_bytes, dtype=torch.uint8, device=device)
    moved = pages * sizes.page_bytes
    shuffled = torch.randperm(2 * pages, generator=torch.Generator().manual_seed(2)).tolist()
    first, second = (page_indexes(half, device) for half in (shuffled[:pages], shuffled[pages:]))
    staging = torch.empty(pages, sizes.page_bytes, dtype=torch.uint8, device=device)
    host = torch.empty(staging.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    words, rows = as_words(buffer), as_words(staging)
    works: dict[str, Callable[[], object]] = {
        "page copy": copies_launch(words, words, second, first, pages).run,
        "swap: gather": copies_launch(rows, words, None, first, pages).run,
        "swap: scatter": copies_launch(words, rows, first, None, pages).run,
    }
    lines = []
    for name, work in works.items():
        seconds = clock.seconds(work)
        rate = 2 * moved / seconds
        lines.append(Line(name, seconds, _bandwidth(rate), rate / rates.device, "copy rate", 0.75))

    def swap_out() -> None:
        works["swap: gather"]()
        host.copy_(staging, non_blocking=True)

    seconds = clock.eager_seconds(swap_out)
    rate = moved / seconds
    lines.append(Line("swap out", seconds, _bandwidth(rate), rate / rates.to_host, "copy to pinned memory", 0.8))
    return lines


def _bandwidth(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"


def as_markdown(title: str, lines: list[Line]) -> str:
    """Return the table, with what must be reached beside what was."""
    rows = [f"# {title}", "", "| what | time | rate | ratio | to | must | |", "|---|---|---|---|---|---|---|"]
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        must = "" if line.must is None else f"{line.must:.2f}"
        verdict = "" if line.ratio is None or line.must is None else "met" if line.ratio >= line.must else "missed"
        time = f"{line.seconds * 1e6:.1f} us" if line.seconds else ""
        rows.append(f"| {line.name} | {time} | {line.rate} | {ratio} | {line.compared} | {must} | {verdict} |")
    return "\n".join(rows) + "\n"
