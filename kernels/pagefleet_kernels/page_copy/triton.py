"""Copies of whole pages for GPUs: page_copy, and the gather and scatter of page_gather_scatter.

`gpu.py` beside this launches it.
"""

# Kernels are a language of their own: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import triton
import triton.language as tl


# Sizes are given in units of 16 bytes, so that the compiler knows that whole vectors can be moved.
@triton.jit(do_not_specialize=["num_vectors", "target_stride", "source_stride"])
def copy_pages_kernel(
    target,  # [N, 4 * vectors], int32
    source,  # [M, 4 * vectors], int32
    target_pages,  # int32, or None: copy i goes to page i; a negative page is copied nowhere
    source_pages,  # int32, or None: copy i comes from page i
    num_vectors,
    target_stride,
    source_stride,
    WORDS: tl.constexpr,
):
    copy = tl.program_id(0)
    target_page = copy.to(tl.int64)
    source_page = copy.to(tl.int64)
    if target_pages is not None:
        target_page = tl.load(target_pages + copy).to(tl.int64)
    if source_pages is not None:
        source_page = tl.load(source_pages + copy).to(tl.int64)
    if (target_page < 0) | (source_page < 0):
        return
    word = tl.program_id(1).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    mask = word < num_vectors * 4
    words = tl.load(source + source_page * source_stride * 4 + word, mask=mask)
    tl.store(target + target_page * target_stride * 4 + word, words, mask=mask)
