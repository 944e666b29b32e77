"""The C++ norm and activation, packed linear layers and 2 MiB pages against their meaning."""

import itertools

import pytest
import torch
from torch.nn.functional import linear

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.cpu.huge_pages import ask_for_huge_pages
from pagefleet_kernels.gated_activation import Activation, gated_activation
from pagefleet_kernels.prepacked_linear import PrepackedLinear, WeightMemory, prepack_linear, why_not_onednn
from pagefleet_kernels.rms_norm import rms_norm
from tests.kernels.tolerances import GATED_LINEAR, LINEAR, ROUNDING

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "size"), [(1, 576), (3, 35), (500, 130)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_norm_equals_its_meaning(
    library: CpuLibrary, dtype: torch.dtype, tokens: int, size: int, with_residual: bool
) -> None:
    x = torch.randn(tokens, 2 * size).to(dtype)[:, :size]
    weights = torch.randn(size)
    residuals = [torch.randn(tokens, size).to(dtype) if with_residual else None] * 2
    residuals = [None if residual is None else residual.clone() for residual in residuals]

    ours = rms_norm(x, weights, 1e-5, residual=residuals[0], library=library)
    meant = rms_norm(x, weights, 1e-5, residual=residuals[1])

    torch.testing.assert_close(ours, meant, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    if with_residual:
        assert torch.equal(*residuals)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "size"), [(1, 1536), (3, 35), (300, 200)])
def test_the_gated_activation_equals_its_meaning(
    library: CpuLibrary, dtype: torch.dtype, activation: Activation, tokens: int, size: int
) -> None:
    gate_up = (4 * torch.randn(tokens, 2 * size)).to(dtype)
    gate_up[0, :4] = torch.tensor([200.0, -200.0, 0.0, float("nan")]).to(dtype)

    ours = gated_activation(gate_up, activation, library=library)
    # In float32 the formula with tanh cancels where the gate is far below zero, by more than the kernel's rounding.
    meant = gated_activation(gate_up.double(), activation).to(dtype)

    torch.testing.assert_close(ours, meant, equal_nan=True, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_layers_that_do_not_fit_are_named(library: CpuLibrary) -> None:
    with pytest.raises(ValueError, match=r"float32 \[size\]"):
        rms_norm(torch.zeros(2, 8), torch.ones(8, dtype=torch.bfloat16), 1e-5, library=library)
    with pytest.raises(ValueError, match="residual"):
        rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5, residual=torch.zeros(1, 8), library=library)
    with pytest.raises(ValueError, match="an even number"):
        gated_activation(torch.zeros(2, 7), "silu", library=library)
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        rms_norm(torch.zeros(2, 8, dtype=torch.float64), torch.ones(8), 1e-5, library=library)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("inputs", [50, 51, 2500])
def test_packed_layers_equal_torchs_own(library: CpuLibrary, dtype: torch.dtype, rows: int, inputs: int) -> None:
    weights = [torch.randn(size, inputs).to(dtype) for size in (60, 7, 8)]
    biases = [torch.randn(60).to(dtype), None, torch.randn(8).to(dtype)]
    x = torch.randn(rows, inputs).to(dtype)

    ours = PrepackedLinear(weights, biases, library)(x)

    parts = zip(weights, biases, strict=True)
    meant = torch.cat([linear(x.float(), w.float(), None if b is None else b.float()) for w, b in parts], dim=1)
    assert (ours.float() - meant).abs().max() <= LINEAR[dtype] * meant.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("inputs", [50, 51, 2500])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_layer_equals_its_product_and_then_its_activation(
    library: CpuLibrary, dtype: torch.dtype, rows: int, inputs: int, activation: Activation
) -> None:
    weights = [torch.randn(75, inputs).to(dtype) / inputs**0.5 for _ in range(2)]
    biases = [torch.randn(75).to(dtype), None]
    x = torch.randn(rows, inputs).to(dtype)

    ours = PrepackedLinear(weights, biases, library, activation=activation)(x[None])

    parts = zip(weights, biases, strict=True)
    product = torch.cat([linear(x.float(), w.float(), None if b is None else b.float()) for w, b in parts], dim=1)
    meant = gated_activation(product, activation)
    assert ours.shape == (1, rows, 75)
    assert (ours[0].float() - meant).abs().max() <= GATED_LINEAR[dtype] * meant.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_product_doesnt_depend_on_other_rows_or_its_place(library: CpuLibrary, dtype: torch.dtype) -> None:
    layer = PrepackedLinear([torch.randn(100, 1536).to(dtype)], library=library)
    x = torch.randn(37, 1536).to(dtype)

    together = layer(x)

    assert torch.equal(torch.cat([layer(x[:1]), layer(x[1:12]), layer(x[12:])]), together)
    assert torch.equal(layer(x.repeat(1, 2)[:, :1536]), together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_onednn_packs_where_there_is_no_library(dtype: torch.dtype) -> None:
    reason = why_not_onednn(dtype)
    if reason:
        pytest.skip(f"this machine can't pack linear layers by oneDNN: {reason}")
    weight, x = torch.randn(30, 51).to(dtype), torch.randn(7, 51).to(dtype)

    meant = linear(x.float(), weight.float())

    assert (PrepackedLinear([weight])(x).float() - meant).abs().max() <= LINEAR[dtype] * meant.abs().max()


def test_a_packed_layer_keeps_shape_and_says_its_bytes(library: CpuLibrary) -> None:
    layer = prepack_linear(torch.nn.Linear(52, 30).bfloat16(), library)

    with torch.inference_mode():
        assert layer(torch.zeros(1, 4, 52).bfloat16()).shape == (1, 4, 30)
    assert layer.num_bytes == 2 * 52 * 30 + 4 * 30
    assert list(layer.parameters()) == []


def test_inputs_of_another_type_or_size_are_named(library: CpuLibrary) -> None:
    layer = prepack_linear(torch.nn.Linear(52, 30), library)

    with pytest.raises(ValueError, match=r"expected torch.float32 \[..., 52\]"):
        layer(torch.zeros(3, 50))
    with pytest.raises(ValueError, match=r"x is torch.bfloat16"):
        layer(torch.zeros(3, 52).bfloat16())


def test_types_that_cannot_be_packed_are_named() -> None:
    assert why_not_onednn(torch.float64) == "weights are torch.float64; packing takes torch.float32, torch.bfloat16"


def test_weights_lie_on_cache_lines_and_apart() -> None:
    memory = WeightMemory()

    taken = [memory.take(size) for size in (5, 40, 17 << 20, 16)]

    spans = sorted((piece.data_ptr(), piece.data_ptr() + 4 * piece.numel()) for piece in taken)
    assert [piece.numel() for piece in taken] == [5, 40, 17 << 20, 16]
    assert all(begin % 64 == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_huge_pages_are_asked_for_or_a_reason_is_given() -> None:
    assert ask_for_huge_pages(torch.empty(100)) in (
        "the memory is smaller than 2 MiB",
        "this system has no transparent 2 MiB pages",
    ) or "forbids" in str(ask_for_huge_pages(torch.empty(100)))
    pool = torch.empty(16 << 20, dtype=torch.uint8)
    reason = ask_for_huge_pages(pool)
    assert reason is None or "2 MiB pages" in reason
