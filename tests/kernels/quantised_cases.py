"""Cases of paged attention with their pages in eight bits."""

import torch

from pagefleet_kernels.quantised_kv import CacheScales, Fp8Scales, Int8Scales, write_quantised_reference
from tests.kernels.attention_cases import AttentionInputs


def quantise(inputs: AttentionInputs, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, CacheScales]:
    """Return the inputs' pages in eight bits. What no query may see stays NaN by its scale, or is the largest code."""
    num_pages, block_size, heads, _ = inputs.key_pages.shape
    pages = [
        torch.full(pages.shape, 0x7E if dtype == torch.uint8 else 127, dtype=dtype)
        for pages in (inputs.key_pages, inputs.value_pages)
    ]
    scales: CacheScales = Fp8Scales(keys=0.01, values=0.02)
    if dtype == torch.int8:
        # Two scales for each token and head, side by side in a page, as a page's last bytes hold them.
        both = torch.full((num_pages, 2 * heads, block_size), float("nan"))
        scales = Int8Scales(keys=both[:, :heads], values=both[:, heads:])
    slots = (~inputs.key_pages[:, :, 0, 0].isnan()).flatten().nonzero().flatten()
    page, place = slots // block_size, slots % block_size
    write_quantised_reference(
        inputs.key_pages[page, place], inputs.value_pages[page, place], pages[0], pages[1], scales, slots
    )
    return pages[0], pages[1], scales
