"""kv_write on a GPU: the launch of the Triton kernel.

Importing this needs Triton; running it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1) and CPU tensors.
"""

import torch
import triton

from pagefleet_kernels.kv_write.triton import kv_write_kernel
from pagefleet_kernels.launch import Launch
from pagefleet_kernels.quantised_kv.scales import CacheScales, Fp8Scales, Int8Scales

TOKENS_PER_PROGRAM = 8
NUM_WARPS = 2


def kv_write_triton(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    scales: CacheScales | None = None,
) -> None:
    """The GPU's kv_write: arguments as checked there, but that rows of slot -1 (padding) are skipped and that pages
    may be quantised. It reads nothing back and can be captured in a graph.

    Raises ValueError where heads aren't contiguous, or scales don't fit the pages.
    """
    for name, tensor in (("key", key), ("value", value), ("key pages", key_pages), ("value pages", value_pages)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} have strides {tensor.stride()}; a head's numbers must be contiguous")
    if scales is not None:
        scales.check(key_pages)
    elif key_pages.dtype in (torch.int8, torch.uint8):
        raise ValueError(f"pages of {key_pages.dtype} can't be written without scales")
    kv_write_launch(key, value, key_pages, value_pages, slots, scales).run()


def kv_write_launch(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    scales: CacheScales | None,
) -> Launch:
    int8 = scales if isinstance(scales, Int8Scales) else None
    fp8 = scales if isinstance(scales, Fp8Scales) else None
    arguments = {
        "key": key,
        "value": value,
        "key_pages": key_pages,
        "value_pages": value_pages,
        "key_scales": int8.keys if int8 else None,
        "value_scales": int8.values if int8 else None,
        "slots": slots,
        "num_tokens": key.shape[0],
        "key_token_stride": key.stride(0),
        "key_head_stride": key.stride(1),
        "value_token_stride": value.stride(0),
        "value_head_stride": value.stride(1),
        "key_page_stride": key_pages.stride(0),
        "key_slot_stride": key_pages.stride(1),
        "key_page_head_stride": key_pages.stride(2),
        "value_page_stride": value_pages.stride(0),
        "value_slot_stride": value_pages.stride(1),
        "value_page_head_stride": value_pages.stride(2),
        "key_scale_page_stride": int8.keys.stride(0) if int8 else 0,
        "value_scale_page_stride": int8.values.stride(0) if int8 else 0,
        "inverse_key_scale": 1 / fp8.keys if fp8 else 1.0,
        "inverse_value_scale": 1 / fp8.values if fp8 else 1.0,
        "BLOCK_SIZE": key_pages.shape[1],
        "HEAD": key.shape[2],
        "HEAD_PADDED": triton.next_power_of_2(key.shape[2]),
        "VALUE": value.shape[2],
        "VALUE_PADDED": triton.next_power_of_2(value.shape[2]),
        "TOKENS": TOKENS_PER_PROGRAM,
        "KIND": "int8" if int8 else "fp8" if fp8 else "same",
        # The interpreter keeps bfloat16 as bits, so the kernel converts first.
        "UPCAST": key.device.type == "cpu",
    }
    grid = (triton.cdiv(key.shape[0], TOKENS_PER_PROGRAM), key.shape[1])
    return Launch(kv_write_kernel, grid, arguments, {"num_warps": NUM_WARPS})
