"""Following the pods: every fault begins anew, and what was known stays in force."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from pagefleet_router.fleet import Fleet
from pagefleet_router.kubernetes_api import ApiFault
from pagefleet_router.watch import PodWatch, wait_seconds
from tests.router.door import until
from tests.router.pods import ScriptedPods, pod

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Following:
    api: ScriptedPods
    fleet: Fleet

    def ready(self) -> int:
        return self.fleet.count()["ready"]


@contextlib.asynccontextmanager
async def following(*faults: ApiFault) -> AsyncIterator[Following]:
    api, fleet = ScriptedPods(), Fleet(asyncio.get_running_loop().time)
    api.refused = list(faults)
    watching = asyncio.create_task(PodWatch(api.connect, fleet).run())
    try:
        yield Following(api, fleet)
        assert not watching.done()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert api.num_closed == api.num_connects - len(faults)


async def test_the_list_and_the_events_after_it_make_the_fleet() -> None:
    async with following() as f:
        assert not f.fleet.known
        f.api.lists.put_nowait([pod("a"), pod("b", ready=False)])
        await until(lambda: f.fleet.known)
        assert f.fleet.count() == {"ready": 1, "draining": 0, "unready": 1}
        f.api.event("MODIFIED", pod("b"), "101")
        await until(lambda: f.ready() == 2)
        f.api.event("MODIFIED", pod("a", deleting=True), "102")
        await until(lambda: f.fleet.count() == {"ready": 1, "draining": 1, "unready": 0})
        f.api.event("DELETED", pod("a"), "103")
        await until(lambda: f.fleet.count() == {"ready": 1, "draining": 0, "unready": 0})


async def test_a_service_without_pods_is_known_too() -> None:
    async with following() as f:
        f.api.lists.put_nowait([])
        await until(lambda: f.fleet.known)
        assert f.ready() == 0


async def test_a_watch_that_ends_goes_on_where_it_was_bookmarks_included() -> None:
    async with following() as f:
        f.api.lists.put_nowait([pod("a")])
        f.api.feed.put_nowait(None)
        f.api.event("MODIFIED", pod("a"), "107")
        f.api.feed.put_nowait(None)
        f.api.event("BOOKMARK", {"metadata": {}}, "200")
        f.api.feed.put_nowait(None)
        await until(lambda: len(f.api.watched_from) == 4)
        assert f.api.watched_from == ["100", "100", "107", "200"]
        assert (f.ready(), f.api.num_connects) == (1, 1)


@pytest.mark.parametrize("status", [None, 401, 403, 410, 429, 500, 503])
async def test_after_a_fault_the_last_known_replicas_stay_until_a_new_list_tells_others(status: int | None) -> None:
    async with following() as f:
        f.api.lists.put_nowait([pod("a"), pod("b")])
        await until(lambda: f.ready() == 2)
        f.api.feed.put_nowait(ApiFault("told to", status))
        await until(lambda: f.api.num_connects == 2)
        assert f.ready() == 2
        f.api.lists.put_nowait([pod("b")])
        await until(lambda: f.ready() == 1)
        f.api.event("ADDED", pod("c"), "109")
        await until(lambda: f.ready() == 2)


async def test_an_api_that_is_down_at_the_start_is_waited_for_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with following(ApiFault("connection refused"), ApiFault("connection refused")) as f:
        await until(lambda: f.api.num_connects == 3)
        assert not f.fleet.known
        f.api.lists.put_nowait([pod("a")])
        await until(lambda: f.ready() == 1)
    said = [record.message for record in caplog.records if record.name == "pagefleet_router.watch"]
    assert said == ["connection refused; not ready until the pods are read", "the Kubernetes API answers again"]


async def test_a_bug_in_the_watch_ends_the_watch_and_is_not_waited_out() -> None:
    api, fleet = ScriptedPods(), Fleet(asyncio.get_running_loop().time)
    api.lists.put_nowait([{"metadata": {"name": "no uid"}}])
    with pytest.raises(KeyError):
        await PodWatch(api.connect, fleet).run()
    assert api.num_closed == 1


@pytest.mark.parametrize(
    ("in_a_row", "fault", "shortest", "longest"),
    [
        (1, ApiFault("x"), 0.1, 0.2),
        (2, ApiFault("x"), 0.2, 0.4),
        (50, ApiFault("x"), 2.5, 5.0),
        (1, ApiFault("x", 429, 3.0), 3.0, 3.0),
        (1, ApiFault("x", 429, 3000.0), 30.0, 30.0),
        (50, ApiFault("x", 429, 1.0), 2.5, 5.0),
        (1, ApiFault("x", 410), 0.0, 0.0),
        (2, ApiFault("x", 410), 0.2, 0.2),
    ],
)
async def test_the_wait_after_a_fault_grows_to_a_limit(
    in_a_row: int, fault: ApiFault, shortest: float, longest: float
) -> None:
    assert wait_seconds(in_a_row, fault, 0.0) == pytest.approx(shortest)
    assert wait_seconds(in_a_row, fault, 1.0) == pytest.approx(longest)
