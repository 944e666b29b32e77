"""Linear layers on int8 codes in C++ against their meaning in plain PyTorch, and that against the exact layer."""

import pytest
import torch
from torch.nn.functional import linear

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.gated_activation import Activation, gated_activation
from pagefleet_kernels.prepacked_linear import PrepackedLinear, WeightMemory
from pagefleet_kernels.prepacked_linear.int8 import MOST_INPUTS
from pagefleet_kernels.prepacked_linear.reference import QuantisedRows, int8_linear, quantise_rows, rotated
from tests.kernels.tolerances import INT8_LINEAR, ROUNDING

TYPES = (torch.float32, torch.bfloat16, torch.float16)


class PoisonedMemory(WeightMemory):
    """What a layer doesn't write is NaN in floats, and -1 in codes."""

    def take(self, num_floats: int) -> torch.Tensor:
        memory = super().take(num_floats)
        memory.view(torch.int32).fill_(-1)
        return memory


def packed(
    library: CpuLibrary, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: Activation | None = None
) -> PrepackedLinear:
    return PrepackedLinear([weight], [bias], library, PoisonedMemory(), activation, quantization="int8")


def codes_of(weight: torch.Tensor) -> QuantisedRows:
    return quantise_rows(rotated(weight))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 3, 7, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (50, 60), (51, 7), (576, 193), (2499, 48)])
def test_int8_layers_equal_their_meaning(
    library: CpuLibrary, dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    # Rows begin off every alignment, and NaN lies on both sides of them.
    around = torch.full((rows, inputs + 9), float("nan")).to(dtype)
    x = around[:, 3 : 3 + inputs].copy_(torch.randn(rows, inputs))

    for some_bias in (bias, None):
        ours = packed(library, weight, some_bias)(x)
        meant = int8_linear(x, codes_of(weight), some_bias)
        torch.testing.assert_close(ours, meant, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize(("inputs", "outputs"), [(51, 7), (576, 193)])
def test_a_gated_int8_layer_equals_its_meaning(
    library: CpuLibrary, activation: Activation, rows: int, inputs: int, outputs: int
) -> None:
    weight, bias, x = torch.randn(2 * outputs, inputs), torch.randn(2 * outputs), torch.randn(rows, inputs)

    for some_bias in (bias, None):
        ours = packed(library, weight, some_bias, activation)(x)
        meant = gated_activation(int8_linear(x, codes_of(weight), some_bias), activation)
        torch.testing.assert_close(ours, meant, rtol=1e-5, atol=1e-5 * float(meant.abs().max()))


@pytest.mark.parametrize("dtype", TYPES)
def test_an_int8_rows_product_doesnt_depend_on_other_rows_or_its_place(library: CpuLibrary, dtype: torch.dtype) -> None:
    layer = packed(library, torch.randn(100, 770).to(dtype))
    x = torch.randn(37, 770).to(dtype)
    x[5] *= 1000

    together = layer(x)

    assert torch.equal(torch.cat([layer(x[:1]), layer(x[1:12]), layer(x[12:])]), together)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), together)
    assert torch.equal(layer(x.repeat(1, 2)[:, :770]), together)


def test_the_largest_codes_neither_saturate_nor_overflow(library: CpuLibrary) -> None:
    codes = torch.ones(4, 20_032)
    codes[1] = -1
    codes[2, ::2] = -1
    x = rotated(codes)  # a rotation that is done twice is undone

    ours = packed(library, x)(x)

    torch.testing.assert_close(ours.double(), codes.double() @ codes.double().T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_that_isnt_finite_is_nan_and_no_other_is(library: CpuLibrary, dtype: torch.dtype) -> None:
    x = torch.randn(5, 51).to(dtype)
    x[1, 50], x[3, 0] = float("nan"), float("-inf")
    layer = packed(library, torch.randn(20, 51).to(dtype))

    not_finite = layer(x).isnan()

    assert not_finite[[1, 3]].all() and not not_finite[[0, 2, 4]].any()
    assert int8_linear(x, codes_of(torch.randn(20, 51)), None).isnan().all(dim=1).tolist() == [0, 1, 0, 1, 0]


def test_rows_of_zeros_and_of_tiny_values_give_the_bias(library: CpuLibrary) -> None:
    bias = torch.randn(20)
    x = torch.zeros(3, 51)
    x[1], x[2] = 1e-35, torch.finfo(torch.float32).smallest_normal / 8

    ours = packed(library, torch.randn(20, 51), bias)(x)

    assert torch.equal(ours, bias.expand(3, -1))


def test_outputs_whose_weights_are_zero_give_the_bias(library: CpuLibrary) -> None:
    bias = torch.randn(3)

    assert torch.equal(packed(library, torch.zeros(3, 8), bias)(torch.randn(2, 8)), bias.expand(2, -1))


def error_of(x: torch.Tensor, weight: torch.Tensor) -> float:
    exact = linear(x, weight)
    return float((int8_linear(x, codes_of(weight), None) - exact).norm() / exact.norm())


def test_codes_are_as_near_to_the_exact_layer_as_their_steps_allow() -> None:
    assert error_of(torch.randn(50, 1536), torch.randn(300, 1536)) <= INT8_LINEAR


def test_a_value_that_stands_out_costs_the_others_little() -> None:
    x, weight = torch.randn(50, 1536), torch.randn(300, 1536)
    x[:, 700] = 50.0
    weight[:, 700] = 0.0  # or its product would hide the others'

    assert error_of(x, weight) <= 3 * INT8_LINEAR


def test_a_rotation_keeps_products_and_pads_with_zeros() -> None:
    x, y = torch.randn(3, 130), torch.randn(5, 130)

    assert rotated(x).shape == (3, 192)
    torch.testing.assert_close(rotated(x) @ rotated(y).T, x @ y.T, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(rotated(torch.eye(1, 64)), torch.full((1, 64), 0.125))


def test_a_rows_largest_value_is_127_and_a_half_goes_to_the_even_code() -> None:
    quantised = quantise_rows(torch.tensor([[2.0, -254.0, 1.0, 3.0, 5.0, 0.0]]))

    assert quantised.codes.tolist() == [[1, -127, 0, 2, 2, 0]]
    assert quantised.scales.tolist() == [2.0]


def test_int8_layers_join_and_say_their_bytes(library: CpuLibrary) -> None:
    weights = [torch.randn(size, 52).bfloat16() for size in (60, 7)]
    layer = PrepackedLinear(weights, [torch.randn(60).bfloat16(), None], library, quantization="int8")

    assert layer(torch.zeros(1, 4, 52).bfloat16()).shape == (1, 4, 67)
    assert layer.num_bytes == 64 * 67 + 4 * 67 + 4 * 67  # codes of whole rotations, scales, bias
    assert list(layer.parameters()) == []


def test_int8_layers_that_cannot_be_are_named(library: CpuLibrary) -> None:
    layer = packed(library, torch.randn(30, 52))

    with pytest.raises(ValueError, match=r"expected torch.float32 \[..., 52\]"):
        layer(torch.zeros(3, 50))
    with pytest.raises(ValueError, match=r"the weight is torch\.float64"):
        packed(library, torch.zeros(3, 50).double())
    with pytest.raises(ValueError, match=f"at most {MOST_INPUTS} inputs"):
        packed(library, torch.zeros(1, MOST_INPUTS + 1))
    with pytest.raises(ValueError, match="there is none"):
        PrepackedLinear([torch.zeros(3, 50)], quantization="int8")
