"""paged_attention for GPUs: one Triton kernel for decode, prefill and mixed steps, and one that merges splits.

A program owns a tile: queries of one row times the query heads of one key-value head. Scores are kept in base 2.
`gpu.py` beside this launches them.
"""

# Kernels are a language of their own: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import triton
import triton.language as tl


@triton.jit
def _load_tile(pages, rows, dims, in_range, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Load rows of a page's keys or values, [keys, PADDED]; what isn't there is 0."""
    pointers = pages + rows[:, None] + dims[None, :]
    if MASKED:
        mask = in_range[:, None] & (dims < SIZE)[None, :]
        return tl.load(pointers, mask=mask, other=0)
    if SIZE != PADDED:
        return tl.load(pointers, mask=(dims < SIZE)[None, :], other=0)
    return tl.load(pointers)


@triton.jit
def _decode(tile, dtype: tl.constexpr, KIND: tl.constexpr):
    """Turn stored numbers into ones that multiply: int8 without its scale, e4m3 in 1/256."""
    if KIND == "fp8":
        code = tile.to(tl.uint16)
        tile = (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tile.to(dtype)


@triton.jit
def _sweep(
    weighted,  # [ROWS, VALUE_PADDED]
    highest,  # [ROWS]
    total,  # [ROWS]
    queries,  # [ROWS, HEAD_PADDED]
    first_seen,  # [ROWS], 0 where there is no window
    num_seen,  # [ROWS]
    begin,
    end,
    table,
    keys,
    values,
    key_scales,
    value_scales,
    key_page_stride,
    value_page_stride,
    key_scale_page_stride,
    value_scale_page_stride,
    tanh_factor,
    score_factor,
    num_kv_heads,
    kv_head,
    MASKED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    KIND: tl.constexpr,
):
    """Take the keys from `begin` to `end` into the running softmax. Not MASKED: every row sees every key of every
    whole tile in that range."""
    for first in tl.range(begin, end, KEYS):
        index = first + tl.arange(0, KEYS)
        in_range = index < end
        if MASKED:
            page = tl.load(table + index // BLOCK_SIZE, mask=in_range, other=0).to(tl.int64)
        else:
            page = tl.load(table + index // BLOCK_SIZE).to(tl.int64)
        place = (index % BLOCK_SIZE) * num_kv_heads + kv_head
        key = _load_tile(
            keys, page * key_page_stride + place * HEAD, tl.arange(0, HEAD_PADDED), in_range, HEAD, HEAD_PADDED, MASKED
        )
        scores = tl.dot(queries, tl.trans(_decode(key, queries.dtype, KIND)), input_precision="ieee")
        if KIND == "int8":
            scale_place = kv_head * BLOCK_SIZE + index % BLOCK_SIZE
            scores *= tl.load(key_scales + page * key_scale_page_stride + scale_place, mask=in_range, other=0)[None, :]
        if SOFTCAP:
            scores = 1 - 2 / (tl.exp2(scores * tanh_factor) + 1)
        if MASKED:
            if WINDOW > 0:
                seen = (index[None, :] - first_seen[:, None]).to(tl.uint32) < num_seen[:, None].to(tl.uint32)
            else:
                seen = index[None, :] < num_seen[:, None]
            # `highest` stays finite, so a row that sees nothing adds exp2(-inf) = 0 and never -inf + inf.
            scores = tl.where(seen, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1) * score_factor)
        weights = tl.exp2(scores * score_factor - new_highest[:, None])
        decay = tl.exp2(highest - new_highest)
        total = total * decay + tl.sum(weights, 1)
        highest = new_highest
        value = _load_tile(
            values,
            page * value_page_stride + place * VALUE,
            tl.arange(0, VALUE_PADDED),
            in_range,
            VALUE,
            VALUE_PADDED,
            MASKED,
        )
        if KIND == "int8":
            value_scale = tl.load(value_scales + page * value_scale_page_stride + scale_place, mask=in_range, other=0)
            weights *= value_scale[None, :]
        weighted = tl.dot(
            weights.to(queries.dtype),
            _decode(value, queries.dtype, KIND),
            acc=weighted * decay[:, None],
            input_precision="ieee",
        )
    return weighted, highest, total


# Numbers that change from step to step must not make new variants.
@triton.jit(do_not_specialize=["pages_per_row", "num_tokens"])
def attention_kernel(
    output,  # [T, Hq, VALUE]; of splits: float32 [splits, T, Hq, VALUE]
    log_sums,  # of splits: float32 [splits, T, Hq], in base 2; else None
    query,  # [T, Hq, HEAD]
    keys,  # [N, BLOCK_SIZE, H, HEAD]
    values,  # [N, BLOCK_SIZE, H, VALUE]
    key_scales,  # of int8: float32 [N, H, BLOCK_SIZE]; else None
    value_scales,
    sinks,  # [Hq] or None
    block_tables,  # [R, pages_per_row]
    context_lengths,  # [R]
    query_starts,  # [R + 1]
    tile_rows,  # [tiles], -1 where there is none
    tile_tokens,  # [tiles]
    pages_per_row,
    num_tokens,
    query_token_stride,
    query_head_stride,
    key_page_stride,
    value_page_stride,
    key_scale_page_stride,
    value_scale_page_stride,
    tanh_factor,
    score_factor,
    output_factor,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    KIND: tl.constexpr,
    UPCAST: tl.constexpr,
    MIN_SPLIT_KEYS: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_kv_heads = tl.num_programs(1)
    row = tl.load(tile_rows + tile)
    if row < 0:
        return

    row_start = tl.load(query_starts + row)
    row_tokens = tl.load(query_starts + row + 1) - row_start
    first_token = tl.load(tile_tokens + tile)
    start_position = tl.load(context_lengths + row) - row_tokens
    lines = tl.arange(0, ROWS)
    token = first_token + lines // GROUP
    head = kv_head * GROUP + lines % GROUP
    valid = (lines < ROWS // GROUP * GROUP) & (token < row_tokens)

    dims = tl.arange(0, HEAD_PADDED)
    tokens = (row_start + token).to(tl.int64)
    query_rows = tokens * query_token_stride + head * query_head_stride
    queries = tl.load(
        query + query_rows[:, None] + dims[None, :], mask=valid[:, None] & (dims < HEAD)[None, :], other=0
    )
    if UPCAST:
        queries = queries.to(tl.float32)

    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(start_position + first_token + 1 - WINDOW, 0)
    end = start_position + tl.minimum(first_token + ROWS // GROUP, row_tokens)
    # A key up to the tile's first query is seen by all of it, if no window ends.
    common_end = start_position + first_token + 1
    if log_sums is not None:
        # Each tile cuts its own range: a grid of fixed size then fits contexts of any length.
        share = tl.cdiv(tl.cdiv(end - begin, tl.num_programs(2)), KEYS) * KEYS
        split_keys = tl.maximum(share, MIN_SPLIT_KEYS)
        begin += split * split_keys
        end = tl.minimum(end, begin + split_keys)
        common_end = tl.minimum(common_end, end)

    position = start_position + token
    first_seen = tl.zeros([ROWS], tl.int32)
    if WINDOW > 0:
        first_seen = position + 1 - WINDOW
    num_seen = tl.where(valid, tl.maximum(tl.minimum(position + 1, end) - first_seen, 0), 0)

    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if sinks is not None:
        if split == 0:
            highest = tl.load(sinks + head, mask=valid, other=0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    weighted = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    table = block_tables + row.to(tl.int64) * pages_per_row

    # Small tiles gain less from a sweep without masks than a second one costs.
    if WINDOW == 0 and ROWS > 32:
        middle = begin + tl.maximum(common_end - begin, 0) // KEYS * KEYS
        weighted, highest, total = _sweep(
            weighted, highest, total, queries, first_seen, num_seen, begin, middle, table, keys, values,
            key_scales, value_scales, key_page_stride, value_page_stride, key_scale_page_stride,
            value_scale_page_stride, tanh_factor, score_factor, num_kv_heads, kv_head, False, BLOCK_SIZE, HEAD,
            HEAD_PADDED, VALUE, VALUE_PADDED, KEYS, WINDOW, SOFTCAP, KIND,
        )  # fmt: skip
        begin = middle
    weighted, highest, total = _sweep(
        weighted, highest, total, queries, first_seen, num_seen, begin, end, table, keys, values,
        key_scales, value_scales, key_page_stride, value_page_stride, key_scale_page_stride,
        value_scale_page_stride, tanh_factor, score_factor, num_kv_heads, kv_head, True, BLOCK_SIZE, HEAD,
        HEAD_PADDED, VALUE, VALUE_PADDED, KEYS, WINDOW, SOFTCAP, KIND,
    )  # fmt: skip

    divisor = tl.where(total == 0, 1.0, total)
    attended = weighted * (output_factor / divisor)[:, None]
    value_dims = tl.arange(0, VALUE_PADDED)
    stored = valid[:, None] & (value_dims < VALUE)[None, :]
    output_rows = tokens * (num_kv_heads * GROUP) + head
    if log_sums is not None:
        output_rows += split.to(tl.int64) * num_tokens * (num_kv_heads * GROUP)
        # An empty split says so by its sum alone. A NaN is not 0 and passes.
        log_sum = tl.where(total == 0, float("-inf"), highest + tl.log2(divisor))
        tl.store(log_sums + output_rows, log_sum, mask=valid)
        stored &= (total != 0)[:, None]
    tl.store(
        output + output_rows[:, None] * VALUE + value_dims[None, :], attended.to(output.dtype.element_ty), mask=stored
    )


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "num_splits"])
def merge_kernel(
    output,  # [T, Hq, VALUE]
    partial,  # float32 [splits, T, Hq, VALUE]
    log_sums,  # float32 [splits, T, Hq]
    query_starts,  # [R + 1]; its last number is how many tokens are there
    num_rows,
    num_tokens,
    num_splits,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Add up one query head's splits, SPLITS at a time."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    if token >= tl.load(query_starts + num_rows):
        return
    dims = tl.arange(0, VALUE_PADDED)
    line = token.to(tl.int64) * num_heads + head
    split_stride = num_tokens.to(tl.int64) * num_heads
    highest = tl.full([], -1e30, tl.float32)
    total = tl.zeros([], tl.float32)
    weighted = tl.zeros([VALUE_PADDED], tl.float32)
    for first in tl.range(0, num_splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        lines = line + split * split_stride
        log_sum = tl.load(log_sums + lines, mask=split < num_splits, other=float("-inf"))
        new_highest = tl.maximum(highest, tl.max(log_sum, 0))
        weights = tl.exp2(log_sum - new_highest)
        decay = tl.exp2(highest - new_highest)
        part = tl.load(
            partial + lines[:, None] * VALUE + dims[None, :],
            mask=(weights > 0)[:, None] & (dims < VALUE)[None, :],
            other=0,
        )
        total = total * decay + tl.sum(weights, 0)
        weighted = weighted * decay + tl.sum(part * weights[:, None], 0)
        highest = new_highest
    tl.store(output + line * VALUE + dims, (weighted / total).to(output.dtype.element_ty), mask=dims < VALUE)
