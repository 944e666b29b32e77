"""The blocks of one memory tier: who holds each, which can be handed out, and which a step may still touch.

Knows nothing of tokens, sequences or the prefix index: whoever releases a block says whether it is worth keeping.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum


class BlockState(Enum):
    FREE = "free"
    CACHED = "cached"  # filled and findable, held by nobody
    LIVE = "live"  # held by a sequence, or pinned as the source of a copy


@dataclass(frozen=True, slots=True)
class PoolCounts:
    free: int  # within the limit
    cached: int
    live: int
    slots_live: int


class BlockPool:
    """Blocks 0 to capacity - 1 of one tier.

    A block that a step may still touch is fenced: released, it is handed out only when that step's epoch and all
    before it have retired. `limit` is how many blocks may be in use; lowering it takes nothing away from a holder.
    """

    def __init__(self, tier: str, capacity: int) -> None:
        self.tier = tier
        self.capacity = capacity
        self.limit = capacity
        self._states = [BlockState.FREE] * capacity
        self._references = [0] * capacity
        self._pins = [0] * capacity
        self._fills = [0] * capacity
        self._epochs = [0] * capacity
        # A sorted list is a heap: the lowest block goes first, so that neighbours stay together.
        self._free = list(range(capacity))
        # Cached and not fenced, least recently used first, with the time of the last use.
        self._idle: OrderedDict[int, float] = OrderedDict()
        # Free or cached, but a step that touched it is still out.
        self._fenced: dict[int, float] = {}
        self._outstanding: set[int] = set()
        self._epoch = 0
        self._num_live = 0
        self._num_cached = 0
        self._slots_live = 0

    # --- steps

    @property
    def epoch(self) -> int:
        """The epoch of the last step that began."""
        return self._epoch

    def begin_step(self) -> int:
        self._epoch += 1
        self._outstanding.add(self._epoch)
        return self._epoch

    def retire(self, epoch: int) -> None:
        """The step has ended. Epochs may retire in any order; a fence opens when all earlier ones have, too."""
        self._outstanding.remove(epoch)
        for block in [block for block in self._fenced if not self.is_fenced(block)]:
            self._settle(block, self._fenced.pop(block))

    def is_fenced(self, block: int) -> bool:
        """Whether a step that is still out may touch the block on behalf of a holder that has released it."""
        return bool(self._outstanding) and self._epochs[block] >= min(self._outstanding)

    # --- handing out

    def take(self) -> int | None:
        """Hand out the lowest free block to one holder; None where none is free within the limit."""
        if not self._free or self._num_live + self._num_cached >= self.limit:
            return None
        block = heapq.heappop(self._free)
        self._references[block] = 1
        self._enter_live(block)
        return block

    def acquire(self, block: int) -> None:
        """Add a holder to a live or cached block."""
        self._references[block] += 1
        self._enter_live(block)

    def release(self, block: int, *, keep: bool, now_seconds: float, epoch: int | None = None) -> None:
        """Take one holder away; the last one leaves it cached (`keep`) or free.

        `epoch` is the step in which the holder is still running, if it is.
        """
        assert self._references[block] > 0, f"block {block} of {self.tier} is released but nobody holds it"
        self._references[block] -= 1
        if epoch is not None:
            self._epochs[block] = max(self._epochs[block], epoch)
        self._leave_live(block, keep, now_seconds)

    def pin(self, block: int) -> None:
        """Keep the block as it is, as the source of a copy, until `unpin`."""
        self._pins[block] += 1
        self._enter_live(block)

    def unpin(self, block: int, *, keep: bool, now_seconds: float) -> None:
        assert self._pins[block] > 0, f"block {block} of {self.tier} is unpinned but was not pinned"
        self._pins[block] -= 1
        self._leave_live(block, keep, now_seconds)

    # --- cached blocks

    def oldest_idle(self) -> tuple[int, float] | None:
        """The cached block to give up first, with the time of its last use."""
        return next(iter(self._idle.items()), None)

    def touch(self, block: int, now_seconds: float) -> None:
        """Count a use of a cached block that nobody holds; nothing happens to others."""
        if block in self._idle:
            self._idle[block] = now_seconds
            self._idle.move_to_end(block)

    def discard(self, block: int) -> None:
        """Make a cached block free. The caller has made it unfindable."""
        assert self._states[block] is BlockState.CACHED, f"block {block} is {self._states[block].value}, not cached"
        self._states[block] = BlockState.FREE
        self._num_cached -= 1
        self._fills[block] = 0
        if self._idle.pop(block, None) is not None:
            heapq.heappush(self._free, block)

    def cached_blocks(self) -> tuple[int, ...]:
        return tuple(block for block, state in enumerate(self._states) if state is BlockState.CACHED)

    # --- what is filled

    def fill(self, block: int) -> int:
        return self._fills[block]

    def set_fill(self, block: int, slots: int) -> None:
        """Note how many of a live block's slots hold a token's KV."""
        self._slots_live += slots - self._fills[block]
        self._fills[block] = slots

    # --- questions

    def state(self, block: int) -> BlockState:
        return self._states[block]

    def references(self, block: int) -> int:
        return self._references[block]

    def pins(self, block: int) -> int:
        return self._pins[block]

    def is_idle(self, block: int) -> bool:
        """Whether the block is cached and could be evicted now."""
        return block in self._idle

    @property
    def num_in_use(self) -> int:
        return self._num_live + self._num_cached

    @property
    def num_obtainable(self) -> int:
        """How many blocks could be had now by taking free ones and evicting cached ones."""
        idle = len(self._idle)
        within_limit = self.limit - self._num_live - (self._num_cached - idle)
        return max(0, min(len(self._free) + idle, within_limit))

    def counts(self) -> PoolCounts:
        free = max(0, self.limit - self._num_live - self._num_cached)
        return PoolCounts(free, self._num_cached, self._num_live, self._slots_live)

    def check(self) -> tuple[str, ...]:
        """What is wrong with the pool's own books, in words."""
        wrong = []
        held = [block for block in range(self.capacity) if self._references[block] + self._pins[block] > 0]
        live = [block for block, state in enumerate(self._states) if state is BlockState.LIVE]
        cached = self.cached_blocks()
        if held != live or len(live) != self._num_live:
            wrong.append(f"{self.tier}: {len(held)} blocks are held, {len(live)} live, {self._num_live} counted")
        if len(cached) != self._num_cached:
            wrong.append(f"{self.tier}: {len(cached)} blocks are cached, {self._num_cached} counted")
        if self._slots_live != sum(self._fills[block] for block in live):
            wrong.append(f"{self.tier}: {self._slots_live} live slots are counted")
        homes = sorted([*self._free, *self._idle, *self._fenced, *live])
        if homes != list(range(self.capacity)):
            wrong.append(f"{self.tier}: a block is in no list or in two")
        return tuple(wrong)

    # --- transitions

    def _enter_live(self, block: int) -> None:
        state = self._states[block]
        if state is BlockState.LIVE:
            return
        assert state is BlockState.CACHED or self._references[block] == 1, f"block {block} is {state.value}"
        if state is BlockState.CACHED:
            self._num_cached -= 1
            self._idle.pop(block, None)
            self._fenced.pop(block, None)
        self._states[block] = BlockState.LIVE
        self._num_live += 1
        self._slots_live += self._fills[block]

    def _leave_live(self, block: int, keep: bool, now_seconds: float) -> None:
        if self._references[block] + self._pins[block] > 0:
            return
        self._num_live -= 1
        self._slots_live -= self._fills[block]
        self._states[block] = BlockState.CACHED if keep else BlockState.FREE
        if keep:
            self._num_cached += 1
        else:
            self._fills[block] = 0
        if self.is_fenced(block):
            self._fenced[block] = now_seconds
        else:
            self._settle(block, now_seconds)

    def _settle(self, block: int, now_seconds: float) -> None:
        if self._states[block] is BlockState.CACHED:
            self._idle[block] = now_seconds
        else:
            heapq.heappush(self._free, block)
