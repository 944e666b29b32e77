"""Work space of a step, which the layers of a model use one after the other."""

from dataclasses import dataclass

import torch

# Part of cpu/layer.cpp.
PARTS = ("norms", "linears", "rotary and KV write", "attention")


@dataclass(frozen=True, slots=True)
class LayerWidths:
    """Values a token of each buffer; layers of one model may differ."""

    hidden: int
    heads: int  # queries, keys and values
    attended: int
    gated: int


@dataclass(frozen=True, slots=True)
class LayerRows:
    """A step's buffers, [tokens, width] each."""

    normed: torch.Tensor
    heads: torch.Tensor
    attended: torch.Tensor
    projected: torch.Tensor
    gated: torch.Tensor
    left: torch.Tensor


class LayerMemory:
    """Grows with the largest step and is kept: fresh memory for each layer would cost page faults. The rows that were
    taken last are valid; taking others overwrites them, but for what one layer leaves to the next."""

    def __init__(self) -> None:
        self.nanoseconds = torch.zeros(len(PARTS), dtype=torch.long)  # spent in each part of all layers so far
        self._pools: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._rows: dict[tuple[LayerWidths, torch.dtype], LayerRows] = {}
        self._tokens = 0

    def take(self, widths: LayerWidths, tokens: int, dtype: torch.dtype) -> LayerRows:
        """Return the buffers of a step; the same ones while the number of tokens stays the same."""
        if tokens != self._tokens:
            self._rows.clear()
            self._tokens = tokens
        rows = self._rows.get((widths, dtype))
        if rows is None:
            rows = self._rows[widths, dtype] = LayerRows(
                normed=self._buffer("normed", tokens, widths.hidden, dtype),
                heads=self._buffer("heads", tokens, widths.heads, dtype),
                attended=self._buffer("attended", tokens, widths.attended, dtype),
                projected=self._buffer("projected", tokens, widths.hidden, dtype),
                gated=self._buffer("gated", tokens, widths.gated, dtype),
                left=self._buffer("left", tokens, widths.hidden, dtype),
            )
        return rows

    def _buffer(self, name: str, tokens: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        count = tokens * width
        pool = self._pools.get((name, dtype))
        if pool is None or pool.numel() < count:
            pool = self._pools[name, dtype] = torch.empty(count, dtype=dtype)
        return pool[:count].view(tokens, width)
