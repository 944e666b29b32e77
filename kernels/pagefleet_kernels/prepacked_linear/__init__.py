"""Linear layers whose weights lie in the order in which a CPU multiplies them."""

from pagefleet_kernels.prepacked_linear.cpu import LinearCall
from pagefleet_kernels.prepacked_linear.int8 import MOST_INPUTS
from pagefleet_kernels.prepacked_linear.memory import WeightMemory
from pagefleet_kernels.prepacked_linear.module import PrepackedLinear, Quantization, prepack_linear
from pagefleet_kernels.prepacked_linear.onednn import why_not_onednn

__all__ = [
    "MOST_INPUTS",
    "LinearCall",
    "PrepackedLinear",
    "Quantization",
    "WeightMemory",
    "prepack_linear",
    "why_not_onednn",
]
