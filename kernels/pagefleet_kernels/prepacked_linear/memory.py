"""Memory for packed weights: large pieces on 2 MiB pages, handed out slice by slice. A model reads all its weights for
every token, and from 4 KiB pages it reads them at half the speed."""

import torch

from pagefleet_kernels.cpu.huge_pages import ask_for_huge_pages

_CHUNK_FLOATS = 16 << 20
_ALIGNMENT_FLOATS = 16  # a cache line


class WeightMemory:
    """Slices live as long as somebody holds one of their chunk; what isn't handed out is never touched."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0)
        self._used = 0

    def take(self, num_floats: int) -> torch.Tensor:
        """Return float32 memory that begins on a cache line."""
        rounded = -(-num_floats // _ALIGNMENT_FLOATS) * _ALIGNMENT_FLOATS
        if self._used + rounded > self._chunk.numel():
            self._chunk = torch.empty(max(_CHUNK_FLOATS, rounded) + _ALIGNMENT_FLOATS)
            ask_for_huge_pages(self._chunk)
            self._used = -self._chunk.data_ptr() // 4 % _ALIGNMENT_FLOATS
        begin, self._used = self._used, self._used + rounded
        return self._chunk[begin : begin + num_floats]
