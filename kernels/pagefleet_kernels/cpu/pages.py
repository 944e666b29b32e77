"""The library's move of whole pages between buffers, which copies and swaps share."""

from array import array

import torch

from pagefleet_kernels.cpu.library import CpuLibrary


def move_pages(
    library: CpuLibrary,
    to: torch.Tensor,  # [rows, bytes per page]
    targets: "array[int] | None",
    source: torch.Tensor,  # [rows, bytes per page]
    sources: "array[int] | None",
    count: int,
) -> None:
    """Copy row sources[i] of `source` to row targets[i] of `to`, in order; an absent list stands for 0, 1, 2 …"""
    for name, buffer in (("target", to), ("source", source)):
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise ValueError(
                f"the {name} buffer on {buffer.device} has strides {buffer.stride()}; expected dense pages"
            )
    library.functions.pagefleet_move_pages(
        to.data_ptr(),
        None if targets is None else targets.buffer_info()[0],
        source.data_ptr(),
        None if sources is None else sources.buffer_info()[0],
        count,
        to.shape[1] * to.element_size(),
        torch.get_num_threads(),
    )
