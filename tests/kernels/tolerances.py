"""The largest difference that a kernel may have from its reference, for inputs from a unit normal distribution.

One table for all kernels that compute; loosening an entry is a decision with a reason. Copies are exact.
"""

import torch

# By the queries' dtype: rounding of inputs, of weights and of the output (the interpreter truncates to bfloat16).
ATTENTION = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# A code may differ by one where a number lies between two: the kernel multiplies by the inverse of a scale.
CODES = {torch.int8: 1, torch.uint8: 1}
# Small operations, relative to the value and to 1: float32 sums in another order; one step of the rounded result.
ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Products, relative to the largest result: float32 sums in another order; rounding of the result to bfloat16.
LINEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# The same of a product that is gated: gate, up and result are each rounded, by 2**-8 at most, and silu and gelu change
# up to 1.3 times as much as the gate: (1.3 + 1 + 1) * 2**-8.
GATED_LINEAR = {torch.float32: 1e-5, torch.bfloat16: 1.3e-2}
# What int8 codes lose, as a share of the result's norm: 127 steps up to the largest of some 1500 normal values, about
# 3.4 deviations, twice, each step's error uniform: 3.4 / 127 / sqrt(12) * sqrt(2) = 1.1e-2.
INT8_LINEAR = 1.3e-2
