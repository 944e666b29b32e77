"""What a linear layer on int8 codes means: inputs rotated, codes with a scale for each output and each row, products
summed exactly."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

LARGEST_CODE = 127
ROTATED = 64  # inputs that are rotated together
# Rows of a smaller one count as zero: its inverse would overflow.
_SMALLEST_SCALE = 1e-32


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """x[i, j] ≈ codes[i, j] · scales[i]."""

    codes: torch.Tensor  # [rows, in] int8
    scales: torch.Tensor  # [rows] float32


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Return x [rows, in] in float32, padded with zeros, each 64 inputs multiplied by an orthogonal Hadamard matrix.

    Products of two rows stay what they were; a value that stands out is spread over 64.
    """
    values: torch.Tensor = pad(x.float(), (0, -x.shape[1] % ROTATED))
    step = 1
    while step < ROTATED:
        pairs = values.view(len(values), -1, 2, step)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        values = torch.stack((first + second, first - second), dim=2).view(len(values), -1)
        step *= 2
    return values / 8  # the root of 64


def quantise_rows(values: torch.Tensor) -> QuantisedRows:
    """Return the codes of values [rows, in] in float32: a row's largest magnitude gets 127.

    Where a value isn't finite, neither is the row's scale, and its codes are 0: what it is multiplied with is NaN.
    """
    largest = values.abs().amax(dim=1)
    finite = values.isfinite().all(dim=1)
    scales = largest / LARGEST_CODE
    # A number divided by a tensor is multiplied by its reciprocal, which rounds twice.
    inverses = torch.where(finite & (scales >= _SMALLEST_SCALE), torch.full_like(largest, LARGEST_CODE) / largest, 0.0)
    codes = torch.where(finite[:, None], values * inverses[:, None], 0.0).round().to(torch.int8)
    return QuantisedRows(codes, scales)


def int8_linear(x: torch.Tensor, weight: QuantisedRows, bias: torch.Tensor | None) -> torch.Tensor:
    """y[i, j] = scale of x[i] · scale of weight[j] · Σ codes · codes + bias[j], for x [rows, in] and the codes of a
    weight whose rows were rotated, too."""
    rows = quantise_rows(rotated(x))
    sums = (rows.codes.double() @ weight.codes.double().T).float()  # exact until it is rounded to float32
    y = sums * (weight.scales * rows.scales[:, None])
    return (y if bias is None else y + bias.float()).to(x.dtype)
