"""Linear layers whose weights lie in the order in which oneDNN multiplies them."""

from pagefleet_kernels.prepacked_linear.module import PrepackedLinear, prepack_linear, why_not_prepacked

__all__ = ["PrepackedLinear", "prepack_linear", "why_not_prepacked"]
