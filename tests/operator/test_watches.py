"""The operator sees that a watch of kopf's has ended, however early it ends."""

import asyncio

import pytest

from pagefleet_operator.handlers import see_that_watches_run


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("early", [True, False], ids=["at once", "after some looks"])
async def test_a_watch_that_ends_is_seen(early: bool) -> None:
    filled, for_ever = asyncio.Event(), asyncio.Event()
    watches = [asyncio.create_task(for_ever.wait(), name=f"watcher for {kind}@here") for kind in ("pods", "services")]
    seeing = asyncio.create_task(see_that_watches_run(filled))
    await asyncio.sleep(0)
    filled.set()
    done, _ = await asyncio.wait({seeing}, timeout=0.05 if early else 1.2)
    assert not done
    watches[0].cancel()
    await asyncio.wait_for(seeing, 10)
    watches[1].cancel()
    await asyncio.wait(watches)
