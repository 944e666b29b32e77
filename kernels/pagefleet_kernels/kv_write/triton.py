"""kv_write for GPUs, with or without quantisation: a program writes a few tokens of one key-value head.

`gpu.py` beside this launches it.
"""

# Kernels are a language of their own: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import triton
import triton.language as tl


@triton.jit
def _encode_e4m3(numbers):
    """Round float32 in -448 … 448 to e4m3, to nearest even, in integer arithmetic that every chip has."""
    sign = (numbers.to(tl.int32, bitcast=True) >> 24) & 0x80
    bits = tl.abs(numbers).to(tl.int32, bitcast=True)
    # Below 2**-6 codes count multiples of 2**-9: adding 2**14 rounds to those and leaves the count in the low bits.
    small = (tl.abs(numbers) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    code = tl.where(bits < (121 << 23), small, normal)
    return (code | sign).to(tl.uint8)


@triton.jit
def _round_to_int8(numbers):
    """Round float32 in -127 … 127 to nearest even: adding 1.5 · 2**23 leaves the integer in the low bits."""
    return ((numbers + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def _write(
    new,
    pages,
    scales,
    inverse_scale,
    source,  # [TOKENS]
    target,  # [TOKENS]
    scale_target,  # [TOKENS]
    real,  # [TOKENS]
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    KIND: tl.constexpr,
    UPCAST: tl.constexpr,
):
    dims = tl.arange(0, PADDED)
    mask = real[:, None] & (dims < SIZE)[None, :]
    rows = tl.load(new + source[:, None] + dims[None, :], mask=mask, other=0)
    if KIND == "int8":
        exact = rows.to(tl.float32)
        scale = tl.max(tl.abs(exact), 1) / 127.0
        inverse = tl.where(scale > 0, 1.0 / tl.where(scale > 0, scale, 1.0), 0.0)
        tl.store(scales + scale_target, scale, mask=real)
        stored = _round_to_int8(exact * inverse[:, None])
    elif KIND == "fp8":
        exact = rows.to(tl.float32) * inverse_scale
        stored = _encode_e4m3(tl.minimum(tl.maximum(exact, -448.0), 448.0))
    elif UPCAST:
        stored = rows.to(tl.float32).to(pages.dtype.element_ty)
    else:
        stored = rows.to(pages.dtype.element_ty)
    tl.store(pages + target[:, None] + dims[None, :], stored, mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def kv_write_kernel(
    key,  # [T, H, HEAD]
    value,  # [T, H, VALUE]
    key_pages,  # [N, block_size, H, HEAD]
    value_pages,  # [N, block_size, H, VALUE]
    key_scales,  # of int8: float32 [N, H, block_size]; else None
    value_scales,
    slots,  # [T], -1 is written nowhere
    num_tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_page_stride,
    key_slot_stride,
    key_page_head_stride,
    value_page_stride,
    value_slot_stride,
    value_page_head_stride,
    key_scale_page_stride,
    value_scale_page_stride,
    inverse_key_scale,
    inverse_value_scale,
    BLOCK_SIZE: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    KIND: tl.constexpr,
    UPCAST: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1).to(tl.int64)
    real = slot >= 0
    page = slot // BLOCK_SIZE
    place = slot % BLOCK_SIZE
    token = token.to(tl.int64)
    scale_place = head * BLOCK_SIZE + place
    _write(
        key, key_pages, key_scales, inverse_key_scale,
        token * key_token_stride + head * key_head_stride,
        page * key_page_stride + place * key_slot_stride + head * key_page_head_stride,
        page * key_scale_page_stride + scale_place, real, HEAD, HEAD_PADDED, KIND, UPCAST,
    )  # fmt: skip
    _write(
        value, value_pages, value_scales, inverse_value_scale,
        token * value_token_stride + head * value_head_stride,
        page * value_page_stride + place * value_slot_stride + head * value_page_head_stride,
        page * value_scale_page_stride + scale_place, real, VALUE, VALUE_PADDED, KIND, UPCAST,
    )  # fmt: skip
