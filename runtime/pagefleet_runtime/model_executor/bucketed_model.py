"""Decode steps at fixed sizes and addresses: recorded once for each size, then replayed.

Launching a small model's kernels one by one takes a GPU's host longer than the GPU takes to run them.
"""

from collections.abc import Callable

import torch

from pagefleet_kernels.pages import Decodes
from pagefleet_runtime.model_executor.decode_buckets import bucket_for, decode_buckets, padded_numbers
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import PackedStep
from pagefleet_runtime.model_executor.paged_model import ForwardResult, PagedModel

Forward = Callable[[], ForwardResult]
# Takes a forward over fixed inputs, and returns what does it again with what they then hold.
Record = Callable[[Forward], Forward]


class BucketedModel:
    """Implements `StepModel` on one cache: decode steps run padded to the next bucket, all others as they are."""

    def __init__(self, model: PagedModel, cache: KVCache, max_rows: int, max_length: int, record: Record) -> None:
        """Record every bucket up to `max_rows` rows, the largest first: smaller ones then fit into its memory.

        The cache isn't touched. Raises whatever the forward and `record` raise.
        """
        self._model = model
        self._cache = cache
        self.buckets = decode_buckets(max_rows)
        self._steps = {bucket: _BucketStep(model, cache, bucket, max_length, record) for bucket in self.buckets[::-1]}

    def forward(self, packed: PackedStep, cache: KVCache, keep: torch.Tensor) -> ForwardResult:
        assert cache is self._cache, "the recorded steps use the cache that they were made for"
        bucket = bucket_for(packed.rows, self.buckets)
        if bucket is None:
            return self._model.forward(packed, cache, keep)
        result = self._steps[bucket].run(packed)
        return ForwardResult(result.logits[keep.to(cache.device)], result.body_output, result.calls)

    def head(self, result: ForwardResult, tokens: torch.Tensor) -> torch.Tensor:
        return self._model.head(result, tokens)


class _BucketStep:
    """One bucket's inputs and its recorded forward."""

    def __init__(self, model: PagedModel, cache: KVCache, num_rows: int, max_length: int, record: Record) -> None:
        self._num_rows = num_rows
        self._numbers = torch.tensor(padded_numbers((), (), num_rows), device=cache.device)  # [3, rows]
        self._decodes = _decodes(cache, num_rows, max_length)
        token_ids, positions, slots = self._numbers
        step = PackedStep((), (), token_ids[None], positions[None], slots, self._decodes.batch)
        keep = torch.arange(num_rows, device=cache.device)
        self._forward = record(lambda: model.forward(step, cache, keep))

    def run(self, packed: PackedStep) -> ForwardResult:
        """Return the result of the bucket's forward: logits of every row, and of padding behind them."""
        numbers = torch.tensor(padded_numbers(packed.rows, packed.slots.tolist(), self._num_rows))
        self._numbers.copy_(numbers.pin_memory() if self._numbers.is_cuda else numbers, non_blocking=True)
        self._decodes.load(packed.batch.rows)
        return self._forward()


def _decodes(cache: KVCache, num_rows: int, max_length: int) -> Decodes:
    make = cache.kernels.pages.decodes
    assert make is not None, "only kernels that have such steps are given buckets"
    return make(num_rows, -(-max_length // cache.block_size), cache.block_size, cache.device)
