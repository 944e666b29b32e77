"""Data for the attention rows: more keys and values than caches hold, in pages and contiguous, on 2 MiB pages."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.cpu.huge_pages import ask_for_huge_pages
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from tests.bench.kernel_timing import cycle

BLOCK_SIZE = 16
SEQUENCES = 32
CONTEXT = 1024
POOL_BYTES = 120 << 20


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    size: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} heads of {self.size}"


SMALL, LARGE = Heads(9, 3, 64), Heads(32, 8, 128)


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def huge(num_bytes: int) -> torch.Tensor:
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    ask_for_huge_pages(memory)
    return memory


class Pool:
    """Enough layers of pages that their keys and values come from memory, and contexts of the given lengths."""

    def __init__(self, heads: Heads, dtype: torch.dtype, lengths: list[int], *, shuffled: bool = True) -> None:
        self.heads, self.dtype, self.lengths = heads, dtype, lengths
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        layer = 2 * BLOCK_SIZE * heads.kv * heads.size
        self.num_layers = max(2, POOL_BYTES // (sum(counts) * layer * dtype.itemsize))
        memory = huge(sum(counts) * self.num_layers * layer * dtype.itemsize)
        self.pages = memory.view(dtype).view(sum(counts), self.num_layers, 2, BLOCK_SIZE, heads.kv, heads.size)
        self.pages.normal_()
        order = torch.randperm(sum(counts)).tolist() if shuffled else list(range(sum(counts)))
        tables = [tuple(order[sum(counts[:i]) : sum(counts[: i + 1])]) for i in range(len(counts))]
        self.batch = AttentionBatch(
            tuple(BatchRow(1, length - 1, table) for length, table in zip(lengths, tables, strict=True)), BLOCK_SIZE
        )
        self.query = torch.randn(len(lengths), heads.query, heads.size).to(dtype)

    @property
    def num_bytes(self) -> int:
        """Keys and values of one layer."""
        return 2 * sum(self.lengths) * self.heads.kv * self.heads.size * self.dtype.itemsize

    def each_layer(self, attend: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[], object]:
        """Return a function that calls `attend` with the keys and values of each layer in turn."""
        return cycle(lambda i: attend(self.pages[:, i, 0], self.pages[:, i, 1]), self.num_layers)

    def attention(self, library: CpuLibrary) -> Callable[[], object]:
        scale = self.heads.size**-0.5
        return self.each_layer(
            lambda keys, values: paged_attention_cpu(
                library, AttentionCall(self.query, keys, values, self.batch, scale)
            )
        )


def contiguous_attention(pool: Pool) -> Callable[[], object]:
    """torch's attention on as many layers of contiguous keys and values; a group's query heads are its queries."""
    heads, longest, count = pool.heads, max(pool.lengths), len(pool.lengths)
    shape = (pool.num_layers, 2, count, heads.kv, longest, heads.size)
    memory = huge(torch.Size(shape).numel() * pool.dtype.itemsize).view(pool.dtype).view(shape).normal_()
    query = pool.query.view(count, heads.kv, -1, heads.size)
    mask = None
    if len(set(pool.lengths)) > 1:
        mask = (torch.arange(longest) < torch.tensor(pool.lengths)[:, None])[:, None, None]
    return cycle(
        lambda i: scaled_dot_product_attention(query, memory[i, 0], memory[i, 1], attn_mask=mask), pool.num_layers
    )
