"""Random choice of tokens: one counter-based number per draw, and the inverse of the cumulative probability.

A draw depends on (seed, choice, position) and the logits alone, never on other rows or on earlier draws. Truncation
(top_k, top_p, min_p) becomes one threshold per row, so that no vocabulary is sorted where its head suffices.
"""

import hashlib
import math
import struct
from collections.abc import Sequence

import torch

from pagefleet_runtime.request import SamplingParams

_HEAD_SIZE = 256
_RESOLUTION_BITS = 53
_LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny


def uniform(seed: int, choice_index: int, position: int) -> float:
    """Return the number in [0, 1) that belongs to this draw."""
    counter = struct.pack("<QQQ", seed % 2**64, choice_index, position)
    digest = hashlib.blake2b(counter, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _RESOLUTION_BITS)) * 2.0**-_RESOLUTION_BITS


def draw_tokens(
    logits: torch.Tensor,  # [K, V] float32; changed
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
) -> list[int]:
    """Return one token per row, drawn with its temperature (above 0) and truncation."""
    # Below float32's least normal number a temperature would be 0, and the best token's 0 / 0 no number.
    temperatures = torch.tensor([max(p.temperature, _LEAST_TEMPERATURE) for p in params], device=logits.device)
    scaled = logits.sub_(logits.max(dim=-1, keepdim=True).values).div_(temperatures[:, None])
    thresholds = torch.tensor(
        [_threshold(scaled[i], p) for i, p in enumerate(params)], device=logits.device, dtype=torch.float32
    )
    weights = scaled.exp().masked_fill_(scaled < thresholds[:, None], 0)
    cumulative = weights.cumsum(dim=-1)
    totals = cumulative[:, -1]
    targets = totals * torch.tensor(uniforms, device=logits.device, dtype=totals.dtype)
    # Rounding must not lift a target to the total: the token that the search then finds would not exist.
    targets = torch.minimum(targets, torch.nextafter(totals, torch.zeros_like(totals)))
    tokens: list[int] = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].tolist()
    return tokens


def _threshold(scaled: torch.Tensor, params: SamplingParams) -> float:
    """Return the least score that may be drawn; the greatest score of the row is 0. Equal scores stay together."""
    threshold = -math.inf if params.min_p <= 0 else math.log(params.min_p)
    if 0 < params.top_k < len(scaled) or params.top_p < 1:
        threshold = max(threshold, _head_threshold(scaled, params))
    return min(threshold, 0.0)


def _head_threshold(scaled: torch.Tensor, params: SamplingParams) -> float:
    limit = params.top_k if 0 < params.top_k < len(scaled) else len(scaled)
    size = min(limit, max(_HEAD_SIZE, params.top_k), len(scaled))
    head = torch.topk(scaled, size).values
    total = head.exp().sum() if size == limit else scaled.exp().sum()
    if params.top_p >= 1:
        return float(head[-1])
    wanted = params.top_p * float(total)
    cumulative = head.exp().cumsum(dim=0)
    if size < limit and float(cumulative[-1]) < wanted:
        head = torch.sort(scaled, descending=True).values
        cumulative = head.exp().cumsum(dim=0)
    needed = int((cumulative < wanted).sum()) + 1
    return float(head[min(needed, len(head)) - 1])
