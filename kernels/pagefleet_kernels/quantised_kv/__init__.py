"""Keys and values in eight bits: what the stored numbers mean, how they are written and read back.

The scales travel with the pages: to the write (kv_write) and to the attention (paged_attention).
"""

from pagefleet_kernels.quantised_kv.reference import (
    dequantise_pages,
    fitting_fp8_scale,
    quantise_fp8,
    quantise_int8,
    write_quantised_reference,
)
from pagefleet_kernels.quantised_kv.scales import CacheScales, Fp8Scales, Int8Scales

__all__ = [
    "CacheScales",
    "Fp8Scales",
    "Int8Scales",
    "dequantise_pages",
    "fitting_fp8_scale",
    "quantise_fp8",
    "quantise_int8",
    "write_quantised_reference",
]
