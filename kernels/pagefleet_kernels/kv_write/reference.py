"""The meaning of kv_write in plain PyTorch."""

import torch


def kv_write_reference(
    key: torch.Tensor,  # [T, H, D]
    value: torch.Tensor,  # [T, H, Dv]
    key_pages: torch.Tensor,  # [N, block_size, H, D]
    value_pages: torch.Tensor,  # [N, block_size, H, Dv]
    slots: torch.Tensor,  # [T]
) -> None:
    block_size = key_pages.shape[1]
    index = (torch.div(slots, block_size, rounding_mode="floor"), slots % block_size)
    key_pages.index_put_(index, key.to(key_pages.dtype))
    value_pages.index_put_(index, value.to(value_pages.dtype))
