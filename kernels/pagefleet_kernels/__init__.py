"""Operations on a paged KV cache, one folder each: reference, Triton, CPU. It knows no scheduler and no server."""
