"""The paged KV cache: one buffer of pages, and a view of it for each layer's keys, values and their scales."""

import math
from collections.abc import Sequence

import torch

from pagefleet_contract.capacity import SCALE_BYTES, LayerShape, layer_bytes
from pagefleet_kernels.choice import PLAIN, Kernels
from pagefleet_kernels.cpu.cache import Rotation
from pagefleet_kernels.cpu.huge_pages import ask_for_huge_pages
from pagefleet_kernels.pages import Writer
from pagefleet_kernels.quantised_kv import CacheScales, Fp8Scales, Int8Scales, quantise_fp8

# What has no type of its own in every torch and on every chip is stored as bytes.
_STORED = {"fp8": torch.uint8}


def stored_dtype(name: str) -> torch.dtype:
    """Return the type that pages of kvCache.dtype `name` have in memory."""
    dtype: torch.dtype = _STORED[name] if name in _STORED else getattr(torch, name)
    return dtype


class KVCache:
    """Pages as bytes, block-major: a page holds every layer's keys, values and, of int8, their scales, contiguous. So
    whatever moves a page moves its scales.

    `buffer` is [num_blocks, bytes_per_block]; a layer's views are [num_blocks, block_size, heads, size] into it.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
        kernels: Kernels = PLAIN,
        fp8_scales: Sequence[Fp8Scales] = (),
    ) -> None:
        """`fp8_scales` are the layers', where `dtype` is uint8, which holds e4m3 codes."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.kernels = kernels
        name = next((name for name, stored in _STORED.items() if stored == dtype), str(dtype).removeprefix("torch."))
        part_bytes = [layer_bytes(layer, name, block_size) for layer in layers]
        self.bytes_per_block = sum(part_bytes)
        # Not filled: the operating system gives memory as pages are first written.
        self.buffer = torch.empty(num_blocks, self.bytes_per_block, dtype=torch.uint8, device=device)
        on_cpu = self.buffer.device.type == "cpu"
        self.why_no_huge_pages = ask_for_huge_pages(self.buffer) if on_cpu else "the GPU's own"
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._scales: list[CacheScales | None] = []
        begin = 0
        for index, (layer, num_bytes) in enumerate(zip(layers, part_bytes, strict=True)):
            key_bytes = block_size * layer.num_kv_heads * layer.key_size * dtype.itemsize
            keys = self._view(begin, (block_size, layer.num_kv_heads, layer.key_size), dtype)
            values = self._view(begin + key_bytes, (block_size, layer.num_kv_heads, layer.value_size), dtype)
            begin += num_bytes
            self._views.append((keys, values))
            if dtype == torch.int8:
                self._scales.append(self._int8_scales(begin, layer))
            else:
                self._scales.append(fp8_scales[index] if dtype == torch.uint8 else None)
        self._writers = [
            kernels.pages.writer(*views, scales) for views, scales in zip(self._views, self._scales, strict=True)
        ]

    @property
    def device(self) -> torch.device:
        return self.buffer.device

    @property
    def num_layers(self) -> int:
        return len(self._views)

    def pages(self, layer_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's keys and values."""
        return self._views[layer_index]

    def writer(self, layer_index: int) -> Writer:
        """Return what writes the layer's keys and values."""
        return self._writers[layer_index]

    def scales(self, layer_index: int) -> CacheScales | None:
        """Return what turns the layer's codes into numbers; None where pages hold numbers."""
        return self._scales[layer_index]

    def write(
        self,
        layer_index: int,
        key: torch.Tensor,  # [T, H, D]
        value: torch.Tensor,  # [T, H, Dv]
        slots: torch.Tensor,  # [T]
        rotation: Rotation | None = None,
    ) -> None:
        """Write the layer's new keys and values into their slots. A rotation, of queries and keys before that, needs
        the C++ kernels."""
        self._writers[layer_index].write(key, value, slots, rotation)

    def fill(self, value: float) -> None:
        """Set every stored key and value; not a number shows whoever reads a slot that nobody wrote."""
        for views, scales in zip(self._views, self._scales, strict=True):
            for pages, scale in zip(
                views, (None, None) if scales is None else (scales.keys, scales.values), strict=True
            ):
                if isinstance(scale, torch.Tensor):
                    scale.fill_(value)
                    pages.fill_(1)
                else:
                    pages.fill_(value if scale is None else int(quantise_fp8(torch.tensor(value), scale)))

    def _int8_scales(self, end: int, layer: LayerShape) -> Int8Scales:
        """They lie before `end`, the layer's last byte of a page."""
        shape = (layer.num_kv_heads, self.block_size)
        num_bytes = SCALE_BYTES * layer.num_kv_heads * self.block_size
        return Int8Scales(
            keys=self._view(end - 2 * num_bytes, shape, torch.float32),
            values=self._view(end - num_bytes, shape, torch.float32),
        )

    def _view(self, begin: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return what lies contiguous in each page from byte `begin` on, as [num_blocks, *shape]."""
        num_bytes = math.prod(shape) * dtype.itemsize
        return self.buffer[:, begin : begin + num_bytes].view(dtype).view(self.num_blocks, *shape)
