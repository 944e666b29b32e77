"""The paged KV cache: one buffer of pages, and a view of it for each layer's keys and values."""

from collections.abc import Sequence

import torch

from pagefleet_contract.capacity import LayerShape
from pagefleet_kernels.choice import PLAIN, Kernels
from pagefleet_kernels.cpu.cache import Rotation
from pagefleet_kernels.cpu.huge_pages import ask_for_huge_pages
from pagefleet_kernels.pages import Writer


class KVCache:
    """Pages as bytes, block-major: a page holds every layer's keys and then values, contiguous.

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
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.kernels = kernels
        self.bytes_per_block = block_size * dtype.itemsize * sum(layer.values_per_token for layer in layers)
        # Not filled: the operating system gives memory as pages are first written.
        self.buffer = torch.empty(num_blocks, self.bytes_per_block, dtype=torch.uint8, device=device)
        on_cpu = self.buffer.device.type == "cpu"
        self.why_no_huge_pages = ask_for_huge_pages(self.buffer) if on_cpu else "the GPU's own"
        self._values = self.buffer.view(dtype)
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []
        offset = 0
        for layer in layers:
            keys = self._view(offset, layer.num_kv_heads, layer.key_size)
            offset += keys[0].numel()
            values = self._view(offset, layer.num_kv_heads, layer.value_size)
            offset += values[0].numel()
            self._views.append((keys, values))
        self._writers = [kernels.pages.writer(*views) for views in self._views]

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
        self._values.fill_(value)

    def _view(self, offset: int, num_heads: int, size: int) -> torch.Tensor:
        strides = (self._values.shape[1], num_heads * size, size, 1)
        return torch.as_strided(self._values, (self.num_blocks, self.block_size, num_heads, size), strides, offset)
