"""The block pool alone: who is handed what, and when."""

import pytest

from pagefleet_runtime.block_pool import BlockPool, BlockState


def taken(pool: BlockPool, count: int) -> list[int]:
    blocks = [pool.take() for _ in range(count)]
    assert None not in blocks
    return [block for block in blocks if block is not None]


def test_hands_out_the_lowest_free_blocks_first_so_that_neighbours_stay_together() -> None:
    pool = BlockPool("device", 6)
    assert taken(pool, 4) == [0, 1, 2, 3]
    for block in (2, 0):
        pool.release(block, keep=False, now_seconds=0.0)
    assert taken(pool, 3) == [0, 2, 4]


def test_hands_out_nothing_when_every_block_is_held() -> None:
    pool = BlockPool("device", 2)
    taken(pool, 2)
    assert pool.take() is None
    assert pool.num_obtainable == 0


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool("device", 1)
    (block,) = taken(pool, 1)
    pool.acquire(block)
    pool.release(block, keep=False, now_seconds=0.0)
    assert pool.state(block) is BlockState.LIVE
    pool.release(block, keep=False, now_seconds=0.0)
    assert pool.state(block) is BlockState.FREE


def test_a_double_free_is_an_error() -> None:
    pool = BlockPool("device", 1)
    (block,) = taken(pool, 1)
    pool.release(block, keep=False, now_seconds=0.0)
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.release(block, keep=False, now_seconds=0.0)


@pytest.mark.parametrize("keep", [False, True], ids=["free", "cached"])
def test_a_block_of_a_step_that_is_out_is_given_to_nobody_before_the_step_retires(keep: bool) -> None:
    pool = BlockPool("device", 1)
    (block,) = taken(pool, 1)
    epoch = pool.begin_step()
    pool.release(block, keep=keep, now_seconds=0.0, epoch=epoch)
    assert pool.take() is None
    assert pool.oldest_idle() is None
    assert pool.num_obtainable == 0
    pool.retire(epoch)
    assert pool.num_obtainable == 1


def test_a_fence_opens_only_when_all_earlier_steps_have_retired_too() -> None:
    pool = BlockPool("device", 1)
    (block,) = taken(pool, 1)
    first, second = pool.begin_step(), pool.begin_step()
    pool.release(block, keep=False, now_seconds=0.0, epoch=second)
    pool.retire(second)
    assert pool.take() is None
    pool.retire(first)
    assert pool.take() == block


def test_a_fenced_cached_block_may_still_be_shared() -> None:
    pool = BlockPool("device", 1)
    (block,) = taken(pool, 1)
    epoch = pool.begin_step()
    pool.release(block, keep=True, now_seconds=0.0, epoch=epoch)
    pool.acquire(block)
    pool.retire(epoch)
    assert pool.state(block) is BlockState.LIVE
    assert pool.check() == ()


def test_cached_blocks_go_least_recently_used_first_and_a_touch_counts_as_use() -> None:
    pool = BlockPool("device", 3)
    for block in taken(pool, 3):
        pool.release(block, keep=True, now_seconds=float(block))
    pool.touch(0, 5.0)
    assert pool.oldest_idle() == (1, 1.0)
    pool.discard(1)
    assert pool.take() == 1


def test_a_lower_limit_hands_out_nothing_before_enough_came_back() -> None:
    pool = BlockPool("device", 4)
    first, second, third = taken(pool, 3)
    pool.limit = 2
    assert pool.take() is None
    pool.release(first, keep=False, now_seconds=0.0)
    assert pool.take() is None
    pool.release(second, keep=False, now_seconds=0.0)
    assert pool.num_obtainable == 1
    assert pool.counts().free == 1
    assert pool.counts().live == 1
    assert pool.state(third) is BlockState.LIVE


def test_a_pinned_source_stays_until_its_copy_is_made() -> None:
    pool = BlockPool("device", 1)
    (block,) = taken(pool, 1)
    pool.pin(block)
    pool.release(block, keep=False, now_seconds=0.0)
    assert pool.take() is None
    pool.unpin(block, keep=False, now_seconds=0.0)
    assert pool.take() == block


def test_live_slots_follow_fills_and_holders() -> None:
    pool = BlockPool("device", 2)
    one, other = taken(pool, 2)
    pool.set_fill(one, 4)
    pool.set_fill(other, 1)
    pool.acquire(one)
    assert pool.counts().slots_live == 5
    pool.release(other, keep=True, now_seconds=0.0)
    assert pool.counts().slots_live == 4
    pool.acquire(other)
    assert pool.counts().slots_live == 5


def test_after_any_churn_exactly_the_free_blocks_can_be_had() -> None:
    pool = BlockPool("device", 8)
    blocks = taken(pool, 8)
    for block in blocks[1::2]:
        pool.release(block, keep=False, now_seconds=0.0)
    assert pool.num_obtainable == 4
    assert taken(pool, 4) == [1, 3, 5, 7]
    assert pool.take() is None
