"""What the wrappers check before they hand addresses to the library, which trusts them."""

import torch

from pagefleet_kernels.quantised_kv import CacheScales

TYPE_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# What pages may hold beside those: codes of int8, and of e4m3 as uint8.
PAGE_TYPE_NUMBERS = {**TYPE_NUMBERS, torch.int8: 3, torch.uint8: 4}


def check_dense(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless the tensor lies on the CPU with its last dimension dense."""
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} lies on {tensor.device}; the CPU kernel reads the CPU's memory only")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has strides {tensor.stride()}; its last dimension must be dense")


def check_address(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless the tensor begins on a multiple of its element's size."""
    address(name, tensor)


def address(name: str, tensor: torch.Tensor) -> int:
    """Return where the tensor begins. Raises ValueError where that is off its type's alignment."""
    begin = tensor.data_ptr()
    if begin % tensor.itemsize:
        raise ValueError(f"{name} begins at {begin:#x}, which is no multiple of {tensor.itemsize}")
    return begin


def check_type(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless the library knows the tensor's type."""
    _check_type(name, tensor, TYPE_NUMBERS)


def check_page_type(name: str, pages: torch.Tensor, scales: CacheScales | None) -> None:
    """Raise ValueError unless the library knows what the pages hold, with the scales that belong to it."""
    _check_type(name, pages, PAGE_TYPE_NUMBERS)
    if scales is not None:
        scales.check(pages)
    elif pages.dtype not in TYPE_NUMBERS:
        raise ValueError(f"{name} are codes of {pages.dtype}, which mean nothing without scales")


def _check_type(name: str, tensor: torch.Tensor, numbers: dict[torch.dtype, int]) -> None:
    if tensor.dtype not in numbers:
        raise ValueError(f"{name} is {tensor.dtype}; the CPU kernel takes {', '.join(map(str, numbers))}")
