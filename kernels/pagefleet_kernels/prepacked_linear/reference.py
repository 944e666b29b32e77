"""What a linear layer on int8 codes means: codes with a scale for each output and each row, products summed exactly."""

from dataclasses import dataclass

import torch

LARGEST_CODE = 127
# Rows without a larger value count as zero: 127 / x would overflow.
_SMALLEST_LARGEST = 1e-30


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """x[i, j] ≈ codes[i, j] · scales[i]."""

    codes: torch.Tensor  # [rows, in] int8
    scales: torch.Tensor  # [rows] float32


def quantise_rows(x: torch.Tensor) -> QuantisedRows:
    """Return the codes of x [rows, in]: a row's largest magnitude gets 127.

    Where a value isn't finite, neither is the row's scale, and its codes are 0: what it is multiplied with is NaN.
    """
    values = x.float()
    largest = values.abs().amax(dim=1)
    finite = values.isfinite().all(dim=1)
    counts = finite & (largest >= _SMALLEST_LARGEST)
    # A number divided by a tensor is multiplied by its reciprocal, which rounds twice.
    inverses = torch.where(counts, torch.full_like(largest, LARGEST_CODE) / largest, 0.0)
    codes = torch.where(finite[:, None], values * inverses[:, None], 0.0).round().to(torch.int8)
    return QuantisedRows(codes, largest / LARGEST_CODE)


def int8_linear(x: torch.Tensor, weight: QuantisedRows, bias: torch.Tensor | None) -> torch.Tensor:
    """y[i, j] = scale of x[i] · scale of weight[j] · Σ codes · codes + bias[j], for x [rows, in]."""
    rows = quantise_rows(x)
    sums = (rows.codes.double() @ weight.codes.double().T).float()  # exact until it is rounded to float32
    y = sums * (weight.scales * rows.scales[:, None])
    return (y if bias is None else y + bias.float()).to(x.dtype)
