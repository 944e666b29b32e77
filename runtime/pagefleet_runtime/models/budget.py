"""How much memory the blocks get and how long a request may be, from settings and measured sizes. Pure arithmetic."""

from dataclasses import dataclass, replace

from pagefleet_contract.capacity import (
    MemorySplit,
    ModelShape,
    block_cap,
    blocks_for,
    blocks_in,
    bytes_per_block,
    describe_bytes,
    idle_process_bytes,
    scratch_bytes,
)
from pagefleet_contract.engine import EngineConfig, quantity_bytes
from pagefleet_runtime.errors import ModelRefused


@dataclass(frozen=True, slots=True)
class LoadedSizes:
    """What is known once the weights are there."""

    shape: ModelShape
    kv_dtype: str
    weights_bytes: int
    workspace_bytes: int
    memory_bytes: int
    memory_source: str
    model_length: int | None  # the model's own longest request
    num_ranks: int = 1  # each with sizes like these
    process_bytes: int = 0  # what the processes hold beside the weights; 0 where the memory isn't theirs, but a GPU's


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    num_blocks: int
    bytes_per_block: int
    max_length_tokens: int
    allowed_length_tokens: int  # what model and setting allow; the blocks may hold less
    notes: tuple[str, ...]

    def cut(self, num_blocks: int, block_size: int) -> "MemoryPlan":
        """Return the plan with fewer blocks: as many as every rank has room for."""
        if num_blocks == self.num_blocks:
            return self
        note = f"{num_blocks} KV blocks are made, not {self.num_blocks}: another rank has no room for more"
        longest = min(self.max_length_tokens, num_blocks * block_size)
        return replace(self, num_blocks=num_blocks, max_length_tokens=longest, notes=(*self.notes, note))


def process_bytes(rank: int, held_bytes: int, weights_bytes: int) -> int:
    """Return what a rank's processes will hold beside the weights among what they hold. With rank 0's is the server,
    which comes to the most of it after the engine has loaded: less than idle processes hold it won't be."""
    return max(idle_process_bytes(2 if rank == 0 else 1), held_bytes - weights_bytes)


def plan_memory(config: EngineConfig, sizes: LoadedSizes) -> MemoryPlan:
    """Return the blocks and the longest request in force. Raises ModelRefused where nothing useful fits."""
    block_size = config.kv_cache.block_size
    block_bytes = bytes_per_block(sizes.shape, sizes.kv_dtype, block_size)
    wanted_length, notes = _wanted_length(config, sizes)
    budget = config.kv_cache.budget
    if budget.blocks is not None:
        num_blocks = budget.blocks
    elif budget.memory is not None:
        num_blocks = _blocks_of_memory(budget.memory, block_bytes * sizes.num_ranks)
    else:
        num_blocks = _blocks_of_percent(config, sizes, block_bytes)
        cap = block_cap(config.scheduling.max_sequences, wanted_length, block_size)
        if num_blocks > cap:
            notes.append(
                f"the memory would hold {num_blocks} blocks; {cap} are made, which is what "
                f"{config.scheduling.max_sequences} sequences of {wanted_length} tokens take"
            )
            num_blocks = cap
    _check_it_fits(sizes, num_blocks, block_bytes)
    held = num_blocks * block_size
    if held < wanted_length:
        all_bytes = block_bytes * sizes.num_ranks
        notes.append(
            f"the longest request is {held} tokens, not {wanted_length}: the KV budget holds {num_blocks} blocks of "
            f"{block_size} tokens ({describe_bytes(num_blocks * all_bytes)}); "
            f"{describe_bytes(blocks_for(wanted_length, block_size) * all_bytes)} would hold {wanted_length}"
        )
    return MemoryPlan(num_blocks, block_bytes, min(held, wanted_length), wanted_length, tuple(notes))


def _wanted_length(config: EngineConfig, sizes: LoadedSizes) -> tuple[int, list[str]]:
    asked, own = config.model.max_length, sizes.model_length
    if asked is None and own is None:
        raise ModelRefused("the model doesn't say how long a request may be; set --model-max-length")
    if own is None or (asked is not None and asked <= own):
        assert asked is not None, "one of the two is there"
        return asked, []
    if asked is None:
        return own, []
    return own, [f"the longest request is {own} tokens, not the {asked} of model.maxLength: the model allows no more"]


def _blocks_of_memory(memory: str, block_bytes: int) -> int:
    num_blocks = blocks_in(quantity_bytes(memory), block_bytes)
    if num_blocks == 0:
        raise ModelRefused(
            f"kvCache.budget.memory is {memory}, but one block takes {describe_bytes(block_bytes)}; give at "
            "least that (--kv-cache-budget-memory), and rather enough for several requests"
        )
    return num_blocks


def _blocks_of_percent(config: EngineConfig, sizes: LoadedSizes, block_bytes: int) -> int:
    percent = config.kv_cache.budget.percent
    assert percent is not None, "the caller looked"
    split = MemorySplit(sizes.memory_bytes, percent, sizes.weights_bytes, _workspace(sizes))
    num_blocks = blocks_in(split.kv_bytes, block_bytes + scratch_bytes(sizes.shape, block_bytes))
    if num_blocks == 0:
        raise ModelRefused(
            f"nothing is left for KV blocks: {percent} % of {describe_bytes(sizes.memory_bytes)} "
            f"({sizes.memory_source}) is {describe_bytes(sizes.memory_bytes * percent // 100)}, but weights take "
            f"{describe_bytes(sizes.weights_bytes)} and {_workspace_words(sizes)}; give more "
            "memory, raise --kv-cache-budget-memory-percent, or lower --scheduling-max-batch-tokens or "
            "--scheduling-max-sequences"
        )
    return num_blocks


def _workspace(sizes: LoadedSizes) -> int:
    return sizes.workspace_bytes + sizes.process_bytes


def _workspace_words(sizes: LoadedSizes) -> str:
    processes = f", the processes themselves {describe_bytes(sizes.process_bytes)}" if sizes.process_bytes else ""
    return f"workspace {describe_bytes(sizes.workspace_bytes)}{processes}"


def _check_it_fits(sizes: LoadedSizes, num_blocks: int, block_bytes: int) -> None:
    kv_bytes = num_blocks * block_bytes
    needed = kv_bytes + sizes.weights_bytes + _workspace(sizes)
    if needed > sizes.memory_bytes:
        raise ModelRefused(
            f"{num_blocks} KV blocks take {describe_bytes(kv_bytes)}; with {describe_bytes(sizes.weights_bytes)} of "
            f"weights and {_workspace_words(sizes)} that is {describe_bytes(needed)}, more "
            f"than {describe_bytes(sizes.memory_bytes)} ({sizes.memory_source}); "
            "lower --kv-cache-budget-blocks or --kv-cache-budget-memory"
        )
