"""The pool and the prefix index together: what a sequence's table is made of, and what becomes of it afterwards.

The rule that everything here keeps: a block that is written has one owner and isn't in the index.
"""

from dataclasses import dataclass

from pagefleet_runtime.block_pool import BlockPool
from pagefleet_runtime.prefix_index import Node, PartialMatch, PrefixIndex
from pagefleet_runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Match:
    """What the index has of a sequence's beginning: full blocks, and perhaps a part of one more."""

    nodes: tuple[Node, ...]
    partial: PartialMatch | None
    block_size: int

    @property
    def num_tokens(self) -> int:
        return len(self.nodes) * self.block_size + (self.partial.num_tokens if self.partial else 0)

    @property
    def blocks(self) -> tuple[int, ...]:
        nodes = (*self.nodes, self.partial.node) if self.partial else self.nodes
        return tuple(node.block for node in nodes if node.block is not None)


class BlockCache:
    """The blocks of the device, with what they hold."""

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self.pool = pool
        self.index = index
        self.block_size = index.block_size
        self.evicted = 0  # cached blocks that were taken for new use
        self.now_seconds = 0.0

    # --- handing out

    def take(self) -> int | None:
        """Return a block for one new holder, evicting cached blocks if need be; None where none can be had."""
        if self.pool.num_obtainable == 0:
            return None
        block = self.pool.take()
        while block is None:
            oldest = self.pool.oldest_idle()
            assert oldest is not None, "a block was obtainable"
            self._evict(oldest[0])
            self.evicted += 1
            block = self.pool.take()
        return block

    def shrink(self) -> None:
        """Evict cached blocks while more blocks are in use than the limit allows."""
        while self.pool.num_in_use > self.pool.limit:
            oldest = self.pool.oldest_idle()
            if oldest is None:
                return
            self._evict(oldest[0])

    def expire(self, before_seconds: float) -> None:
        """Evict blocks whose last use was before the given time."""
        oldest = self.pool.oldest_idle()
        while oldest is not None and oldest[1] < before_seconds:
            self._evict(oldest[0])
            oldest = self.pool.oldest_idle()

    def reset(self) -> None:
        """Forget all contents; blocks that are held stay with their holders. Chains must be cut by the caller."""
        self.index.reset()
        for block in self.pool.cached_blocks():
            self.pool.discard(block)

    def distrust(self, sequence: Sequence) -> None:
        """Take everything that the sequence holds out of the index. Its blocks stay with their holders."""
        for block in sequence.table:
            if self.index.holds(block):
                self.index.remove_block(block)
        if sequence.chain is not None:
            self.index.let_go(sequence.chain)
            sequence.chain = None

    def _evict(self, block: int) -> None:
        self.index.remove_block(block)
        self.pool.discard(block)

    # --- finding and sharing

    def digest(self, sequence: Sequence, position: int) -> bytes:
        """Return the digest of the sequence's full block at `position`, counted in blocks."""
        namespace = sequence.state.namespace
        assert namespace is not None, "a sequence that shares nothing has no digests"
        digests, size = sequence.digests, self.block_size
        while len(digests) <= position:
            parent = digests[-1] if digests else self.index.root_digest(namespace)
            start = len(digests) * size
            digests.append(self.index.child_digest(parent, sequence.tokens(start, start + size)))
        return digests[position]

    def match(self, sequence: Sequence) -> Match:
        """Return the longest findable beginning of the sequence, within what it may reuse."""
        size, limit = self.block_size, sequence.reusable
        node = self.index.root(sequence.state.namespace) if sequence.state.namespace is not None else None
        nodes: list[Node] = []
        if node is None or limit <= 0:
            return Match((), None, size)
        while (len(nodes) + 1) * size <= limit:
            start = len(nodes) * size
            digest = self.digest(sequence, len(nodes))
            child = self.index.child(node, digest, sequence.tokens(start, start + size))
            if child is None or child.block is None:
                break
            nodes.append(child)
            node = child
        start = len(nodes) * size
        partial = self.index.partial(node, sequence.tokens(start, min(start + size, limit)))
        return Match(tuple(nodes), partial, size)

    def adopt(self, sequence: Sequence, match: Match) -> None:
        """Start the sequence's table with the matched blocks, shared."""
        for block in match.blocks:
            self.pool.acquire(block)
            sequence.table.append(block)
        sequence.computed = match.num_tokens
        if sequence.state.namespace is None:
            return
        if match.nodes:
            sequence.chain = match.nodes[-1]
            self.index.hold(match.nodes[-1])
        else:
            sequence.chain = self.index.hold_root(sequence.state.namespace)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give the child the parent's table, shared, and its place in the index."""
        for block in parent.table:
            self.pool.acquire(block)
        child.table = list(parent.table)
        child.computed = parent.computed
        child.chain = parent.chain
        child.digests = list(parent.digests)
        if child.chain is not None:
            self.index.hold(child.chain)

    # --- after computing

    def confirm(self, sequence: Sequence, computed: int) -> None:
        """Note that the sequence's tokens up to `computed` are in its blocks; full blocks become findable."""
        size, table = self.block_size, sequence.table
        for position in range(sequence.computed // size, (computed - 1) // size + 1):
            self.pool.set_fill(table[position], min(size, computed - position * size))
        sequence.computed = computed
        chain = sequence.chain
        while chain is not None and chain.depth < computed // size:
            chain = self._extend(sequence, chain)

    def _extend(self, sequence: Sequence, chain: Node) -> Node | None:
        depth = chain.depth
        tokens = sequence.tokens(depth * self.block_size, (depth + 1) * self.block_size)
        node = self.index.extend(chain, self.digest(sequence, depth), tokens, sequence.table[depth])
        if node is not None:
            self.index.hold(node)
        sequence.chain = node
        self.index.let_go(chain)
        return node

    # --- giving back

    def release(self, sequence: Sequence, *, keep_tail: bool) -> None:
        """Give all blocks of the sequence back; what is findable stays cached.

        `keep_tail`: the partly filled last block is as the last confirmed step left it, and may be reused, too.
        """
        pool, table = self.pool, sequence.table
        full = sequence.computed // self.block_size
        if keep_tail and sequence.epoch is None:
            self._index_tail(sequence, full)
        nodes = self._chain_nodes(sequence)
        # Ends first, so that the least recently used order gives up tails before their parents.
        for position in range(len(table) - 1, -1, -1):
            block = table[position]
            if position < len(nodes):
                node = nodes[position]
                self.index.attach(node, block)
                if node.block is not None and node.block != block:
                    pool.touch(node.block, self.now_seconds)
            self.release_block(block, sequence.epoch)
        table.clear()
        if sequence.chain is not None:
            self.index.let_go(sequence.chain)
            sequence.chain = None

    def release_block(self, block: int, epoch: int | None) -> None:
        self.pool.release(block, keep=self.index.holds(block), now_seconds=self.now_seconds, epoch=epoch)

    def unpin(self, block: int) -> None:
        self.pool.unpin(block, keep=self.index.holds(block), now_seconds=self.now_seconds)

    def make_private(self, block: int, fill: int) -> None:
        """Take a block out of the index for its only owner, who keeps its first `fill` slots and writes the next."""
        self.index.remove_block(block)
        self.pool.set_fill(block, fill)

    def _index_tail(self, sequence: Sequence, full: int) -> None:
        fill = sequence.computed % self.block_size
        chain = sequence.chain
        if fill == 0 or chain is None or chain.depth != full:
            return
        block = sequence.table[full]
        if self.pool.references(block) == 1 and not self.index.holds(block):
            start = full * self.block_size
            self.index.add_tail(chain, sequence.tokens(start, start + fill), block)

    def _chain_nodes(self, sequence: Sequence) -> list[Node]:
        nodes: list[Node] = []
        node = sequence.chain
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes
