"""The meaning of paged_attention in plain PyTorch: one row and one query at a time, in float32."""

import torch

from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow


def paged_attention_reference(
    query: torch.Tensor,  # [T, Hq, D]
    key_pages: torch.Tensor,  # [N, block_size, H, D]
    value_pages: torch.Tensor,  # [N, block_size, H, Dv]
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,  # [Hq]
) -> torch.Tensor:
    outputs = []
    first = 0
    for row in batch.rows:
        for offset in range(row.num_tokens):
            position = row.start_position + offset
            begin = 0 if window is None else max(0, position + 1 - window)
            keys = _context(key_pages, row, begin, position + 1)
            values = _context(value_pages, row, begin, position + 1)
            outputs.append(_one_query(query[first + offset].float(), keys, values, scale, softcap, sinks))
        first += row.num_tokens
    return torch.stack(outputs).to(query.dtype)


def _context(pages: torch.Tensor, row: BatchRow, begin: int, end: int) -> torch.Tensor:
    block_size = pages.shape[1]
    rows = [pages[row.block_table[p // block_size], p % block_size] for p in range(begin, end)]
    return torch.stack(rows).float()  # [L, H, D]


def _one_query(
    query: torch.Tensor,  # [Hq, D]
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    group = query.shape[0] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)  # [L, Hq, D]
    values = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,lhd->hl", query, keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None]], dim=1)
    weights = torch.softmax(scores, dim=-1)[:, : keys.shape[0]]
    return torch.einsum("hl,lhd->hd", weights, values)
