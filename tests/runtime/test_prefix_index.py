"""The prefix index alone: what is found, and what never is."""

from collections import Counter

from pagefleet_runtime.prefix_index import Node, PrefixIndex

KEY = b"k"


def add(index: PrefixIndex, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
    node = index.extend(parent, index.child_digest(parent.digest, tokens), tokens, block)
    assert node is not None
    return node


def find(index: PrefixIndex, parent: Node, tokens: tuple[int, ...]) -> Node | None:
    return index.child(parent, index.child_digest(parent.digest, tokens), tokens)


def test_finds_a_block_behind_its_own_parent_only() -> None:
    index = PrefixIndex(KEY, 2)
    root = index.hold_root("")
    x, y = add(index, root, (1, 2), 0), add(index, root, (3, 4), 1)
    z = add(index, x, (5, 6), 2)
    assert find(index, x, (5, 6)) is z
    assert find(index, y, (5, 6)) is None
    assert find(index, root, (5, 6)) is None


def test_equal_digests_with_other_tokens_are_misses() -> None:
    index = PrefixIndex(KEY, 2, digest_bytes=1)
    root = index.hold_root("")
    found, collisions = 0, 0
    for number in range(1000):
        tokens = (number, number)
        node = index.extend(root, index.child_digest(root.digest, tokens), tokens, number)
        collisions += node is None
        hit = find(index, root, tokens)
        found += hit is not None
        assert (hit is None) == (node is None)
        assert hit is None or hit.tokens == tokens
    assert found <= 256
    assert collisions == 1000 - found


def test_a13_equal_digests_of_equal_tokens_behind_another_parent_are_misses() -> None:
    index = PrefixIndex(KEY, 2, digest_bytes=1)
    root, tokens = index.hold_root(""), (7, 7)
    beginnings = [index.extend(root, index.child_digest(root.digest, (n, n)), (n, n), n) for n in range(100, 300)]
    parents = [node for node in beginnings if node is not None]
    digests = Counter(index.child_digest(parent.digest, tokens) for parent in parents)
    assert max(digests.values()) > 1, "no two beginnings give the chunk one digest: this proves nothing"
    for number, parent in enumerate(parents):
        node = index.extend(parent, index.child_digest(parent.digest, tokens), tokens, 1000 + number)
        assert node is None or node.parent is parent
        assert find(index, parent, tokens) is node


def test_namespaces_share_nothing() -> None:
    index = PrefixIndex(KEY, 2)
    one, other = index.hold_root("a"), index.hold_root("b")
    add(index, one, (1, 2), 0)
    assert one.digest != other.digest
    assert find(index, other, (1, 2)) is None


def test_digests_depend_on_the_key() -> None:
    assert PrefixIndex(b"k", 2).root_digest("") != PrefixIndex(b"l", 2).root_digest("")


def test_the_first_block_of_a_content_stays() -> None:
    index = PrefixIndex(KEY, 2)
    root = index.hold_root("")
    node = add(index, root, (1, 2), 0)
    assert add(index, root, (1, 2), 1) is node
    assert node.block == 0
    assert not index.holds(1)


def test_a_node_outlives_its_block_while_children_need_it_and_takes_a_new_one() -> None:
    index = PrefixIndex(KEY, 2)
    root = index.hold_root("")
    parent = add(index, root, (1, 2), 0)
    child = add(index, parent, (3, 4), 1)
    index.remove_block(0)
    ghost = find(index, root, (1, 2))
    assert ghost is parent and ghost.block is None
    assert add(index, root, (1, 2), 7) is parent
    assert find(index, parent, (3, 4)) is child
    assert index.check() == ()


def test_ghosts_go_with_their_last_child() -> None:
    index = PrefixIndex(KEY, 2)
    root = index.hold_root("")
    parent = add(index, root, (1, 2), 0)
    add(index, parent, (3, 4), 1)
    index.let_go(root)
    index.remove_block(0)
    index.remove_block(1)
    assert index.root("") is None
    assert find(index, root, (1, 2)) is None


def test_the_longest_common_beginning_wins_among_tails_and_full_blocks() -> None:
    index = PrefixIndex(KEY, 4)
    root = index.hold_root("")
    add(index, root, (1, 2, 3, 4), 0)
    index.add_tail(root, (1, 2, 9), 1)
    for tokens, block, length in (((1, 2, 3, 7), 0, 3), ((1, 2, 9, 9), 1, 3), ((1, 2, 3, 4), 0, 4)):
        match = index.partial(root, tokens)
        assert match is not None
        assert (match.node.block, match.num_tokens) == (block, length)
    assert index.partial(root, (2, 2)) is None


def test_a_single_common_token_of_a_big_block_is_not_worth_a_copy() -> None:
    index = PrefixIndex(KEY, 16)
    root = index.hold_root("")
    add(index, root, tuple(range(16)), 0)
    assert index.partial(root, (0, 1, 2, 9)) is None
    assert index.partial(root, (0, 1, 2, 3)) is not None


def test_a_tail_that_another_block_begins_with_is_not_kept() -> None:
    index = PrefixIndex(KEY, 4)
    root = index.hold_root("")
    add(index, root, (1, 2, 3, 4), 0)
    index.add_tail(root, (1, 2), 1)
    assert not index.holds(1)
    index.add_tail(root, (1, 5), 2)
    assert index.holds(2)


def test_a_reset_finds_nothing_any_more() -> None:
    index = PrefixIndex(KEY, 2)
    root = index.hold_root("")
    add(index, root, (1, 2), 0)
    index.reset()
    assert index.root("") is None
    assert not index.holds(0)
