"""Which filled block holds which beginning: a tree of blocks' contents, one root per namespace.

A digest finds a candidate, the tokens and the parent's identity decide: a collision costs time, never an answer.
Knows block numbers, but not who holds them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

# How many of a parent's latest children with the right first token are compared for a common beginning.
_CANDIDATES = 8


@dataclass(eq=False, slots=True)
class Node:
    """One block's content under its parent. A full node outlives its block (a ghost) while children or holders need
    it; a tail (fewer tokens than a block has slots) does not."""

    digest: bytes
    parent: "Node | None"
    tokens: tuple[int, ...]
    depth: int  # full blocks from the root to here, this one included
    block: int | None
    holders: int = 0  # sequences whose chain ends here
    children: "dict[int, dict[Node, None]]" = field(default_factory=dict)  # by first token, oldest first


@dataclass(frozen=True, slots=True)
class PartialMatch:
    node: Node
    num_tokens: int  # common beginning


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


class PrefixIndex:
    """The tree. `hash_key` makes digests unpredictable to clients."""

    def __init__(self, hash_key: bytes, block_size: int, digest_bytes: int = 16) -> None:
        self.block_size = block_size
        # A coincidence of a token or two (every prompt begins alike) isn't worth copying a page for.
        self._least_common = max(1, block_size // 4)
        self._key = hash_key
        self._digest_bytes = digest_bytes
        self._roots: dict[str, Node] = {}
        self._root_names: dict[Node, str] = {}
        self._full: dict[bytes, Node] = {}
        self._by_block: dict[int, Node] = {}

    # --- digests

    def root_digest(self, namespace: str) -> bytes:
        return self._digest(b"root", namespace.encode())

    def child_digest(self, parent_digest: bytes, tokens: Sequence[int]) -> bytes:
        return self._digest(parent_digest, array("q", tokens).tobytes())

    def _digest(self, head: bytes, content: bytes) -> bytes:
        hasher = blake2b(head, key=self._key, digest_size=self._digest_bytes)
        hasher.update(content)
        return hasher.digest()

    # --- finding

    def root(self, namespace: str) -> Node | None:
        return self._roots.get(namespace)

    def child(self, parent: Node, digest: bytes, tokens: tuple[int, ...]) -> Node | None:
        """Return the full node of this content, perhaps a ghost."""
        node = self._full.get(digest)
        if node is None or node.parent is not parent or node.tokens != tokens:
            return None
        return node

    def partial(self, parent: Node, tokens: tuple[int, ...]) -> PartialMatch | None:
        """Return the block under `parent` with the longest common beginning, where that is worth having."""
        if not tokens:
            return None
        best: PartialMatch | None = None
        candidates = parent.children.get(tokens[0], {})
        for node, _ in zip(reversed(candidates), range(_CANDIDATES), strict=False):
            if node.block is None:
                continue
            length = common_length(node.tokens, tokens)
            if length >= self._least_common and (best is None or length > best.num_tokens):
                best = PartialMatch(node, length)
        return best

    def holds(self, block: int) -> bool:
        return block in self._by_block

    # --- adding

    def hold_root(self, namespace: str) -> Node:
        """Return the namespace's root, made if need be, with one holder more."""
        root = self._roots.get(namespace)
        if root is None:
            root = Node(self.root_digest(namespace), None, (), 0, None)
            self._roots[namespace] = root
            self._root_names[root] = namespace
        root.holders += 1
        return root

    def extend(self, parent: Node, digest: bytes, tokens: tuple[int, ...], block: int) -> Node | None:
        """Make a filled block findable and return its node; the first block of a content stays.

        None means a collision: the chain can't go on here.
        """
        node = self._full.get(digest)
        if node is None:
            node = Node(digest, parent, tokens, parent.depth + 1, None)
            self._full[digest] = node
            self._adopt(parent, node)
        elif node.parent is not parent or node.tokens != tokens:
            return None
        self.attach(node, block)
        return node

    def attach(self, node: Node, block: int) -> None:
        """Give a ghost a block of its content; nothing happens to a node that has one."""
        if node.block is None and block not in self._by_block:
            node.block = block
            self._by_block[block] = node

    def add_tail(self, parent: Node, tokens: tuple[int, ...], block: int) -> None:
        """Make a partly filled block findable, unless another block already begins with its tokens."""
        known = self.partial(parent, tokens)
        if known is not None and known.num_tokens == len(tokens):
            return
        node = Node(b"", parent, tokens, parent.depth, block)
        self._by_block[block] = node
        self._adopt(parent, node)

    def _adopt(self, parent: Node, node: Node) -> None:
        parent.children.setdefault(node.tokens[0], {})[node] = None

    # --- removing

    def remove_block(self, block: int) -> None:
        """Make a block unfindable; its node stays as a ghost while it is needed."""
        node = self._by_block.pop(block)
        node.block = None
        self._drop_unneeded(node)

    def hold(self, node: Node) -> None:
        node.holders += 1

    def let_go(self, node: Node) -> None:
        node.holders -= 1
        self._drop_unneeded(node)

    def reset(self) -> None:
        """Forget everything. Sequences must not use the nodes that they hold any more."""
        self._roots.clear()
        self._root_names.clear()
        self._full.clear()
        self._by_block.clear()

    def _drop_unneeded(self, node: Node) -> None:
        while node.block is None and not node.children and node.holders == 0:
            parent = node.parent
            if parent is None:
                # A root that was forgotten by a reset has no name any more.
                if node in self._root_names:
                    del self._roots[self._root_names.pop(node)]
                return
            if self._full.get(node.digest) is node:
                del self._full[node.digest]
            siblings = parent.children[node.tokens[0]]
            del siblings[node]
            if not siblings:
                del parent.children[node.tokens[0]]
            node = parent

    # --- checking

    def check(self) -> tuple[str, ...]:
        """What is wrong with the tree, in words."""
        wrong = [
            f"block {block} and its node disagree" for block, node in self._by_block.items() if node.block != block
        ]
        reachable: list[Node] = []
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            reachable.append(node)
            stack.extend(child for siblings in node.children.values() for child in siblings)
        with_block = sum(node.block is not None for node in reachable)
        full = sum(len(node.tokens) == self.block_size for node in reachable)
        if with_block != len(self._by_block):
            wrong.append(f"{with_block} nodes have a block, {len(self._by_block)} blocks have a node")
        if full != len(self._full):
            wrong.append(f"{full} full nodes are in the tree, {len(self._full)} in the table")
        bare = [node for node in reachable if node.block is None and not node.children and node.holders == 0]
        if bare:
            wrong.append(f"{len(bare)} nodes without block, child or holder were kept")
        return tuple(wrong)
