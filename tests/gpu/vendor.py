"""The vendor's attention that comes with torch: `varlen_attn` on pages of 256 tokens, the size that it takes."""

from dataclasses import replace

import torch

from pagefleet_kernels.paged_attention.configs import Chip
from tests.gpu.timing import Stopwatch
from tests.gpu.workloads import Step, prepare

PAGE = 256


def vendor_seconds(step: Step, chip: Chip, device: torch.device, stopwatch: Stopwatch) -> float | str:
    """Return its time for the same step, or why there is none."""
    if device.type != "cuda":
        return "needs a GPU"
    if step.stored != torch.bfloat16:
        return "takes no quantised cache"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        return f"not in torch {torch.__version__}: {error}"
    prepared = prepare(replace(step, block_size=PAGE), chip, device)
    tables = prepared.plan.tables
    queries, contexts = zip(*step.rows, strict=True)
    keys, values = prepared.key_pages.contiguous(), prepared.value_pages.contiguous()

    def work() -> object:
        return varlen_attn(
            prepared.query, keys, values, tables.query_starts, None, max(queries), max(contexts),
            scale=step.heads.size**-0.5, window_size=(-1, 0), enable_gqa=True, seqused_k=tables.context_lengths,
            block_table=tables.block_tables,
        )  # fmt: skip

    try:
        return stopwatch.seconds(work)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"refused: {str(error).splitlines()[0][:120]}"
