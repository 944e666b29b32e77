"""paged_attention by gathering pages and torch's attention: decode rows in padded batches, prefill rows one by one.

Index tensors, masks and scratch space are made once per step and shared by its layers. Fused attention takes a batch
of contexts only with a mask, and its cost is that of reading keys once per key-value head: query heads of a group
travel as its query length.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagefleet_kernels.paged_attention.batch import AttentionBatch
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.layout import GatherRow, split_rows


@dataclass(frozen=True, slots=True)
class _Gather:
    """Rows gathered together: R rows of P pages each, one row for a prefill."""

    tokens: torch.Tensor | slice  # R·T queries, in row order
    num_rows: int
    num_pages: int
    pages: torch.Tensor  # [R·P]
    unwritten: torch.Tensor | None  # slots of the gathered R·P·block_size that may hold no numbers
    mask: torch.Tensor | None  # [R, 1, T, P·block_size], added to scores; None is plain causal from position 0
    causal_length: int  # of plain causal rows: how many of the gathered slots hold context


def gathered_attention(call: AttentionCall) -> torch.Tensor:
    query, batch, scales = call.query, call.batch, call.scales
    key_scales, value_scales = (None, None) if scales is None else (scales.keys, scales.values)
    output = call.new_output()
    plain = call.softcap is None and call.sinks is None
    for gather in _gathers(batch, call.window, query.dtype, query.device, plain):
        keys = _context(call.key_pages, key_scales, gather, batch, "keys", query.dtype)  # [R, L, H, D]
        values = _context(call.value_pages, value_scales, gather, batch, "values", query.dtype)
        queries = query[gather.tokens]
        queries = queries.view(gather.num_rows, -1, *queries.shape[1:])  # [R, T, Hq, D]
        if plain:
            attended = _fused(queries, keys, values, gather, call.scale)
        else:
            attended = _explicit(queries, keys, values, gather, call)
        output[gather.tokens] = attended.flatten(0, 1)
    return output


def _gathers(
    batch: AttentionBatch, window: int | None, dtype: torch.dtype, device: torch.device, plain: bool
) -> list[_Gather]:
    key = (window, dtype, plain)
    if key not in batch.plans:
        groups, prefills = split_rows(batch, window)
        gathers = [_decode_gather(group, batch.block_size, dtype, device) for group in groups]
        gathers += [_prefill_gather(row, batch.block_size, window, dtype, device, plain) for row in prefills]
        batch.plans[key] = gathers
    made: list[_Gather] = batch.plans[key]
    return made


def _decode_gather(rows: list[GatherRow], block_size: int, dtype: torch.dtype, device: torch.device) -> _Gather:
    num_pages = len(rows[0].pages)
    # Rows are padded with their own first page: where it is full, what it holds are numbers and a mask suffices.
    pages = [page for row in rows for page in (*row.pages, *row.pages[:1] * (num_pages - len(row.pages)))]
    slot = torch.arange(num_pages * block_size)
    begins = torch.tensor([row.begin - row.first_position for row in rows])[:, None]
    ends = torch.tensor([row.end - row.first_position for row in rows])[:, None]
    own = torch.tensor([len(row.pages) * block_size for row in rows])[:, None]
    unseen = (slot < begins) | (slot >= ends)  # [R, L]
    unwritten = unseen & ((slot < own) | (begins > 0) | (ends < block_size))
    mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, float("-inf"))
    return _Gather(
        tokens=_as_index([row.first_token for row in rows], device),
        num_rows=len(rows),
        num_pages=num_pages,
        pages=torch.tensor(pages, device=device),
        unwritten=_nonzero(unwritten, device),
        mask=mask[:, None, None, :].to(device),
        causal_length=0,
    )


def _prefill_gather(
    row: GatherRow, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device, plain: bool
) -> _Gather:
    length = len(row.pages) * block_size
    position = torch.arange(row.first_position, row.first_position + length)
    plain_causal = plain and row.start_position == 0 and (window is None or window >= row.end)
    mask = None
    if not plain_causal:
        own = torch.arange(row.start_position, row.end)[:, None]
        hidden = position > own
        if window is not None:
            hidden |= position <= own - window
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[None, None].to(device)
    return _Gather(
        tokens=slice(row.first_token, row.first_token + row.num_tokens),
        num_rows=1,
        num_pages=len(row.pages),
        pages=torch.tensor(row.pages, device=device),
        unwritten=_nonzero((position < row.begin) | (position >= row.end), device),
        mask=mask,
        causal_length=row.end,
    )


def _as_index(tokens: list[int], device: torch.device) -> torch.Tensor | slice:
    if tokens == list(range(tokens[0], tokens[0] + len(tokens))):
        return slice(tokens[0], tokens[0] + len(tokens))
    return torch.tensor(tokens, device=device)


def _nonzero(chosen: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    index = chosen.flatten().nonzero().flatten()
    return index.to(device) if len(index) else None


def _context(
    pages: torch.Tensor,
    scales: torch.Tensor | float | None,
    gather: _Gather,
    batch: AttentionBatch,
    role: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Gather the rows' pages; slots that no query sees become 0, because a masked NaN is still NaN."""
    block_size, num_heads, size = pages.shape[1:]
    gathered = _pages_of(pages, gather, batch, role).view(-1, num_heads, size)
    if gather.unwritten is not None:
        gathered.index_fill_(0, gather.unwritten, 0)
    numbers = _numbers(gathered, scales, gather, batch, role, dtype)
    return numbers.view(gather.num_rows, gather.num_pages * block_size, num_heads, size)


def _numbers(
    gathered: torch.Tensor,  # [R·L, H, D]
    scales: torch.Tensor | float | None,
    gather: _Gather,
    batch: AttentionBatch,
    role: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    if scales is None:
        return gathered.to(dtype)
    if isinstance(scales, float):
        return gathered.view(torch.float8_e4m3fn).to(dtype) * scales
    of_slots = _pages_of(scales, gather, batch, f"{role} scales").view(len(gather.pages), *scales.shape[1:])
    of_slots = of_slots.transpose(1, 2).flatten(0, 1)  # [R·L, H]
    if gather.unwritten is not None:
        of_slots = of_slots.index_fill(0, gather.unwritten, 0)
    return (gathered * of_slots[..., None]).to(dtype)


def _pages_of(stored: torch.Tensor, gather: _Gather, batch: AttentionBatch, role: str) -> torch.Tensor:
    """Copy the rows' pages of something that lies dense in each page, one behind the other."""
    flat = torch.as_strided(stored, (stored.shape[0], stored[0].numel()), (stored.stride(0), 1))
    scratch = _scratch(batch, role, len(gather.pages) * flat.shape[1], stored)
    return torch.index_select(flat, 0, gather.pages, out=scratch.view(len(gather.pages), flat.shape[1]))


def _scratch(batch: AttentionBatch, role: str, num_elements: int, like: torch.Tensor) -> torch.Tensor:
    """Return `num_elements` of memory that lives as long as the step: fresh memory for each layer costs several times
    the gather itself in page faults."""
    key = (role, like.dtype)
    held: torch.Tensor | None = batch.plans.get(key)
    if held is None or held.numel() < num_elements:
        held = batch.plans[key] = torch.empty(num_elements, dtype=like.dtype, device=like.device)
    return held[:num_elements]


def _fused(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, gather: _Gather, scale: float
) -> torch.Tensor:
    num_rows, num_tokens, num_heads, size = queries.shape
    num_kv_heads = keys.shape[2]
    group = num_heads // num_kv_heads
    grouped = queries.reshape(num_rows, num_tokens, num_kv_heads, group, size)
    if num_tokens == 1:
        attended = scaled_dot_product_attention(
            grouped[:, 0], keys.transpose(1, 2), values.transpose(1, 2), attn_mask=gather.mask, scale=scale
        )  # [R, H, G, Dv]
        return attended.flatten(1, 2)[:, None]
    if gather.mask is None:
        keys, values = keys[:, : gather.causal_length], values[:, : gather.causal_length]
    attended = scaled_dot_product_attention(
        grouped[0].permute(1, 2, 0, 3),  # [H, G, T, D]
        keys[0].transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        values[0].transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        attn_mask=gather.mask,
        is_causal=gather.mask is None,
        scale=scale,
    )
    return attended.permute(2, 0, 1, 3).flatten(1, 2)[None]


def _explicit(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    gather: _Gather,
    call: AttentionCall,
) -> torch.Tensor:
    """Attention with what torch's fused one lacks: soft-caps and sinks. Scores are float32."""
    num_rows, num_tokens, num_heads, size = queries.shape
    num_kv_heads = keys.shape[2]
    group = num_heads // num_kv_heads
    grouped = queries.reshape(num_rows, num_tokens, num_kv_heads, group, size)
    folded = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [R, H, G·T, D]
    scores = torch.matmul(folded, keys.permute(0, 2, 3, 1)).float() * call.scale  # [R, H, G·T, L]
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    assert gather.mask is not None
    split = (num_rows, num_kv_heads, group, num_tokens, -1)
    scores = scores.view(split) + gather.mask[:, :, None]
    weights = _softmax_with_sinks(scores, call.sinks, num_kv_heads, group).to(values.dtype)
    attended = torch.matmul(weights.flatten(2, 3), values.transpose(1, 2))  # [R, H, G·T, Dv]
    return attended.view(split).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _softmax_with_sinks(
    scores: torch.Tensor, sinks: torch.Tensor | None, num_kv_heads: int, group: int
) -> torch.Tensor:
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.float().view(1, num_kv_heads, group, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
