"""What the child process runs: a kernel in Triton's interpreter beside its reference. Results are small values."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet_kernels.kv_write.gpu import kv_write_triton
from pagefleet_kernels.kv_write.reference import kv_write_reference
from pagefleet_kernels.page_copy.gpu import page_copy_triton
from pagefleet_kernels.page_copy.reference import page_copy_reference
from pagefleet_kernels.page_gather_scatter.gpu import page_gather_triton, page_scatter_triton
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.paged_attention.gpu import (
    AttentionPlan,
    cache_kind,
    launch_attention,
    paged_attention_triton,
    plan_attention,
)
from pagefleet_kernels.paged_attention.reference import paged_attention_reference
from pagefleet_kernels.paged_attention.tiles import StepTables, TableSizes, cut_tiles
from pagefleet_kernels.quantised_kv import (
    CacheScales,
    Fp8Scales,
    Int8Scales,
    dequantise_pages,
    write_quantised_reference,
)
from tests.kernels.attention_cases import AttentionCase, AttentionInputs, make_inputs
from tests.kernels.quantised_cases import quantise


@dataclass(frozen=True, slots=True)
class AttentionCheck:
    case: AttentionCase
    chip: Chip
    quantised: torch.dtype | None = None
    device: str = "cpu"

    def __str__(self) -> str:
        quantised = f"-{self.quantised}".replace("torch.", "") if self.quantised else ""
        return f"{self.chip.family}x{self.chip.num_processors}-{self.case}{quantised}"


def attention_difference(check: AttentionCheck) -> float:
    """Return the largest difference from the reference, which runs on the CPU; NaN where an output is NaN or was not
    written."""
    inputs = make_inputs(check.case)
    options = _options(check.case, inputs)
    key_pages, value_pages, scales = inputs.key_pages, inputs.value_pages, None
    stored_keys, stored_values = key_pages, value_pages
    if check.quantised is not None:
        stored_keys, stored_values, scales = quantise(inputs, check.quantised)
        key_pages, value_pages = dequantise_pages(stored_keys, stored_values, scales)
    with fresh_memory_is_nan():
        call = AttentionCall(
            inputs.query.to(check.device),
            _moved(stored_keys, check.device),
            _moved(stored_values, check.device),
            inputs.batch,
            scales=_scales_on(scales, check.device),
            **_on(options, check.device),
        )
        output = paged_attention_triton(call, check.chip)
    expected = paged_attention_reference(inputs.query, key_pages, value_pages, inputs.batch, **options)
    return _difference(output.cpu(), expected)


@contextmanager
def fresh_memory_is_nan() -> Generator[None]:
    """A hole in an output, or in a split's part, is seen."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _moved(pages: torch.Tensor, device: str) -> torch.Tensor:
    """Move pages with their strides: `to` would make them contiguous."""
    if device == "cpu":
        return pages
    there = torch.empty(pages.shape[0], pages.stride(0), dtype=pages.dtype, device=device)
    view = there[:, : pages[0].numel()].view(pages.shape)
    return view.copy_(pages)


def _scales_on(scales: CacheScales | None, device: str) -> CacheScales | None:
    if isinstance(scales, Int8Scales):
        return Int8Scales(_moved(scales.keys, device), _moved(scales.values, device))
    return scales


def _on(options: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: option.to(device) if isinstance(option, torch.Tensor) else option for name, option in options.items()}


def _options(case: AttentionCase, inputs: AttentionInputs) -> dict[str, Any]:
    return {"scale": inputs.scale, "window": case.window, "softcap": case.softcap, "sinks": inputs.sinks}


def _difference(output: torch.Tensor, expected: torch.Tensor) -> float:
    return (output.float() - expected.float()).abs().max().item()


def attention_difference_on_tables_of_fixed_size(cases: tuple[AttentionCase, ...], device: str = "cpu") -> list[float]:
    """Run steps one after the other on one set of tables larger than each, as a captured graph does. Tokens of padding
    are in the query; their outputs must stay as they were. Return the difference of each step, NaN if they changed."""
    chip = Chip("sm_90", 40)
    sizes = TableSizes(num_rows=5, num_tiles=7, pages_per_row=50)
    tables = StepTables(sizes, torch.device(device))
    return [_on_tables(case, tables, chip, device) for case in cases]


def _on_tables(case: AttentionCase, tables: StepTables, chip: Chip, device: str) -> float:
    inputs = make_inputs(case)
    options = _options(case, inputs)
    group = case.heads // case.kv_heads
    fitting = plan_attention(inputs.batch, group, case.size, cache_kind(case.dtype), chip, torch.device(device))
    tables.load(inputs.batch, cut_tiles(inputs.batch, fitting.config.rows // group))
    num_tokens = inputs.batch.num_tokens
    padding = torch.full((3, case.heads, case.size), float("nan"), dtype=case.dtype)
    query = torch.cat([inputs.query, padding]).to(device)
    plan = AttentionPlan(tables, fitting.config)
    output = torch.full(query.shape, float("nan"), dtype=case.dtype, device=device)
    output[num_tokens:] = 7
    key_pages, value_pages = _moved(inputs.key_pages, device), _moved(inputs.value_pages, device)
    call = AttentionCall(query, key_pages, value_pages, inputs.batch, **_on(options, device))
    launch_attention(output, call, plan, chip)
    expected = paged_attention_reference(inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch, **options)
    untouched = bool((output[num_tokens:] == 7).all())
    return _difference(output[:num_tokens].cpu(), expected) if untouched else float("nan")


@dataclass(frozen=True, slots=True)
class WriteCheck:
    num_tokens: int
    dtype: torch.dtype
    stored: torch.dtype
    heads: int = 3
    size: int = 80
    value_size: int = 48
    block_size: int = 16
    device: str = "cpu"

    def __str__(self) -> str:
        names = f"{self.dtype}-to-{self.stored}".replace("torch.", "")
        return f"{names}-{self.num_tokens}tokens-{self.heads}heads-size{self.size}"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The largest difference of a stored number (in codes where quantised) and of a scale; whether other slots, and
    what lies between the pages' parts, kept their bytes."""

    difference: float
    scale_difference: float
    others_kept: bool


def written(check: WriteCheck) -> WriteResult:
    generator = torch.Generator().manual_seed(check.num_tokens)
    num_pages = 3 + check.num_tokens // check.block_size
    slots = torch.randperm(num_pages * check.block_size, generator=generator)[: check.num_tokens].to(check.device)
    slots[1::5] = -1
    wide = torch.randn(check.num_tokens, check.heads, check.size + check.value_size + 32, generator=generator)
    wide = wide.to(check.device, check.dtype)
    wide[0, 0] = 0  # a row of zeros has no scale
    key, value = wide[..., : check.size], wide[..., -check.value_size :]
    stores = [_Store(check, num_pages), _Store(check, num_pages)]
    kv_write_triton(key, value, stores[0].keys, stores[0].values, slots, stores[0].scales)
    if stores[1].scales is not None:
        write_quantised_reference(key, value, stores[1].keys, stores[1].values, stores[1].scales, slots)
    else:
        real = slots >= 0
        kv_write_reference(key[real], value[real], stores[1].keys, stores[1].values, slots[real])
    return _compare(check, stores[0], stores[1], slots[slots >= 0])


def wrong_codes_of_every_half(device: str) -> int:
    """Store every finite float16 as e4m3 with scale 1, which makes the division exact; count codes that aren't the
    reference's."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    rows = every[every.isfinite()].view(124, 2, 256).to(device)
    stored = [torch.zeros(8, 16, 2, 256, dtype=torch.uint8, device=device) for _ in range(4)]
    slots, scales = torch.arange(124, device=device), Fp8Scales(1.0, 1.0)
    kv_write_triton(rows, rows, stored[0], stored[1], slots, scales)
    write_quantised_reference(rows, rows, stored[2], stored[3], scales, slots)
    return int((stored[0] != stored[2]).sum() + (stored[1] != stored[3]).sum())


class _Store:
    """Pages in which keys, values and scales of a layer lie beside what belongs to others."""

    def __init__(self, check: WriteCheck, num_pages: int) -> None:
        place = check.block_size * check.heads
        filler = float("nan") if check.stored.is_floating_point else 101
        width = place * (check.size + check.value_size) + 64
        self.buffer = torch.full((num_pages, width), filler, dtype=check.stored, device=check.device)
        shape = (num_pages, check.block_size, check.heads, -1)
        self.keys = self.buffer[:, 16 : 16 + place * check.size].view(shape)
        self.values = self.buffer[:, 32 + place * check.size : -32].view(shape)
        self.scales: CacheScales | None = None
        scale_shape = (num_pages, 2 * check.heads, check.block_size)
        self.scale_buffer = torch.full(scale_shape, float("nan"), device=check.device)
        if check.stored == torch.int8:
            self.scales = Int8Scales(
                keys=self.scale_buffer[:, : check.heads], values=self.scale_buffer[:, check.heads :]
            )
        if check.stored == torch.uint8:
            self.scales = Fp8Scales(keys=0.011, values=0.004)


def _compare(check: WriteCheck, got: _Store, expected: _Store, slots: torch.Tensor) -> WriteResult:
    page, place = slots // check.block_size, slots % check.block_size
    pairs = [(got.keys, expected.keys), (got.values, expected.values)]
    differences = [_code_difference(a[page, place], b[page, place]) for a, b in pairs]
    scale_difference = 0.0
    if isinstance(got.scales, Int8Scales) and isinstance(expected.scales, Int8Scales):
        scale_difference = _difference(got.scales.keys[page, :, place], expected.scales.keys[page, :, place])
        scale_difference += _difference(got.scales.values[page, :, place], expected.scales.values[page, :, place])
    fresh = _Store(check, got.buffer.shape[0])
    for store in (got, fresh):
        store.keys[page, place] = 0
        store.values[page, place] = 0
        if isinstance(store.scales, Int8Scales):
            store.scales.keys[page, :, place] = 0
            store.scales.values[page, :, place] = 0
    kept = torch.equal(_bytes(got.buffer), _bytes(fresh.buffer))
    kept = kept and torch.equal(_bytes(got.scale_buffer), _bytes(fresh.scale_buffer))
    return WriteResult(max(differences), scale_difference, kept)


def _code_difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    return (got.double() - expected.double()).abs().max().item()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def pages_after_copies(copies: tuple[tuple[int, int], ...], device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Return random pages after the copies, by the kernel and by the reference."""
    buffer = _random_pages(12, device)
    expected = buffer.clone()
    page_copy_triton(buffer, copies)
    page_copy_reference(expected, copies)
    return buffer, expected


def _random_pages(num_pages: int, device: str) -> torch.Tensor:
    # More than one program's words, and not a multiple of them.
    return torch.randint(0, 256, (num_pages, 4 * 4096 + 208), dtype=torch.uint8, device=device)


@dataclass(frozen=True, slots=True)
class Moved:
    buffer: torch.Tensor
    staging: torch.Tensor
    restored: torch.Tensor


def moved_pages(pages: tuple[int, ...], device: str = "cpu") -> Moved:
    """Gather pages into a staging buffer with one row to spare, and scatter them into an empty cache."""
    buffer = _random_pages(9, device)
    staging = torch.full((len(pages) + 1, buffer.shape[1]), 255, dtype=torch.uint8, device=device)
    page_gather_triton(buffer, pages, staging)
    restored = torch.zeros_like(buffer)
    page_scatter_triton(staging, pages, restored)
    return Moved(buffer, staging, restored)
