"""The scales of a quantised cache, checked against its pages where they are paired."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Int8Scales:
    """One float32 scale for each token and head, [num_blocks, heads, block_size]: a head's tokens lie side by side, so
    that reading a page's scales touches few cache lines. Any page stride; inside a page contiguous."""

    keys: torch.Tensor
    values: torch.Tensor

    def check(self, pages: torch.Tensor) -> None:
        """Raise ValueError unless the scales are those of `pages` [num_blocks, block_size, heads, size]."""
        num_blocks, block_size, num_heads, _ = pages.shape
        expected = (num_blocks, num_heads, block_size)
        for name, scales in (("key", self.keys), ("value", self.values)):
            if scales.shape != expected or scales.dtype != torch.float32:
                raise ValueError(
                    f"{name} scales are {scales.dtype} of shape {list(scales.shape)}; expected float32 {list(expected)}"
                )
            if scales.stride()[1:] != (block_size, 1):
                raise ValueError(f"{name} scales have strides {scales.stride()}; inside a page they must be contiguous")
        if pages.dtype != torch.int8:
            raise ValueError(f"pages have dtype {pages.dtype}; scales for each token and head belong to int8")


@dataclass(frozen=True, slots=True)
class Fp8Scales:
    """One scale for all keys of a layer, one for all its values. Pages are uint8 that hold e4m3 codes."""

    keys: float
    values: float

    def check(self, pages: torch.Tensor) -> None:
        """Raise ValueError unless `pages` can hold e4m3 codes and the scales are positive."""
        if pages.dtype != torch.uint8:
            raise ValueError(f"pages have dtype {pages.dtype}; one scale for a layer belongs to e4m3 codes in uint8")
        if self.keys <= 0 or self.values <= 0:
            raise ValueError(f"scales are {self.keys} and {self.values}; they must be positive")


CacheScales = Int8Scales | Fp8Scales
