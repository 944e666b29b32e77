"""Figures of replicas, read over real sockets in the background."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import pytest

from pagefleet_contract.names import PATH_POLICY, PATH_STATE
from pagefleet_operator.cache import ReplicaAddress, ServiceKey
from pagefleet_operator.faults import RefusedFault, TemporaryFault
from pagefleet_operator.figures import FiguresBook, FiguresPace, Reading
from pagefleet_operator.keys import service_key
from pagefleet_operator.state_page import replica_url
from tests.operator.replica_server import STATE_PAGE, Replica, replica

ROOT_KEY = b"0123456789abcdef"
KEY = ServiceKey("prod", "chat", "uid-1")
PACE = FiguresPace(ready=15.0, timeout=10.0)


def _address(found: Replica, uid: str = "pod-1", ready: bool = True) -> ReplicaAddress:
    return ReplicaAddress(uid, "prod", "chat", found.ip, ready)


class _Reader:
    """A book, and what it told."""

    def __init__(self, pace: FiguresPace = PACE, clock: Callable[[], float] = time.monotonic, **given: Any) -> None:
        self.news: list[ServiceKey] = []
        self.reads: list[bool] = []
        self._changed = asyncio.Event()
        self.book = FiguresBook(pace, ROOT_KEY, self._on_read, clock=clock, **given)

    def _on_read(self, done: bool) -> None:
        self.reads.append(done)
        self._changed.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def ask(self, *addresses: ReplicaAddress) -> None:
        self.book.ask_due(addresses, lambda _: KEY, self.news.append)

    async def read(self, *addresses: ReplicaAddress) -> None:
        """Ask, and wait for as many answers."""
        before = len(self.reads)
        self.ask(*addresses)
        await self.until(lambda: len(self.reads) >= before + len(addresses))


@asynccontextmanager
async def _reading(**given: Any) -> AsyncIterator[_Reader]:
    async with AsyncExitStack() as stack:
        reader = _Reader(**given)
        stack.push_async_callback(reader.book.close)
        yield reader


def _run(body: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await body()

    asyncio.run(run())


def test_a_state_page_becomes_figures_and_the_services_own_key_opens_it() -> None:
    async def body() -> None:
        with replica() as found:
            async with _reading() as reader:
                await reader.read(_address(found))
                figures = reader.book.reading("pod-1").figures
                assert figures is not None
                assert (figures.state, figures.in_flight, figures.live_blocks) == ("ready", 3, 41)
                assert (figures.num_blocks, figures.block_size, figures.notes) == (500, 16, ("cut",))
                assert (figures.dtype, figures.quantization, figures.kv_dtype) == ("bfloat16", "int8", "bfloat16")
                assert figures.policy == {"max_queue": 7}
                assert found.asked == [("GET", PATH_STATE, f"Bearer {service_key(ROOT_KEY, 'uid-1')}", b"")]
                assert reader.news == [KEY]

    _run(body)


def test_a_replica_that_loads_says_how_far_it_is_and_nothing_else() -> None:
    page = {
        **STATE_PAGE,
        "state": "loading",
        "info": None,
        "policy": None,
        "load": {"stage": "weights", "fraction": 0.5},
    }

    async def body() -> None:
        with replica(page=page) as found:
            async with _reading() as reader:
                await reader.read(_address(found))
                figures = reader.book.reading("pod-1").figures
                assert figures is not None
                assert (figures.load_stage, figures.load_fraction, figures.num_blocks) == ("weights", 0.5, None)

    _run(body)


def test_the_same_figures_again_are_no_news() -> None:
    async def body() -> None:
        now = [0.0]
        with replica() as found:
            async with _reading(clock=lambda: now[0]) as reader:
                for _ in range(3):
                    await reader.read(_address(found))
                    now[0] += 16
                assert reader.news == [KEY]

    _run(body)


def test_a_replica_is_asked_again_only_when_its_time_has_come() -> None:
    async def body() -> None:
        now = [0.0]
        with replica() as found:
            async with _reading(clock=lambda: now[0]) as reader:
                await reader.read(_address(found))
                now[0] = 14.0
                reader.ask(_address(found))
                await asyncio.sleep(0.1)
                assert len(found.asked) == 1
                now[0] = 15.0
                await reader.read(_address(found))
                assert len(found.asked) == 2

    _run(body)


def test_hung_replicas_do_not_delay_others() -> None:
    async def body() -> None:
        hold = threading.Event()
        with ExitStack() as stack:
            hung = [stack.enter_context(replica(hold=hold)) for _ in range(6)]
            good = stack.enter_context(replica())
            async with _reading(pace=FiguresPace(ready=15.0, timeout=2.0), num_at_once=8) as reader:
                reader.ask(*(_address(each, f"hung-{index}") for index, each in enumerate(hung)), _address(good))
                await reader.until(lambda: reader.reads.count(False) == 6)
                assert reader.book.reading("pod-1").figures is not None
                assert reader.reads == [True, *[False] * 6]
                assert reader.book.reading("hung-0").fault == "no answer within 2 s"

    _run(body)


def test_a_replica_that_keeps_failing_is_asked_less_and_less() -> None:
    pace = FiguresPace(ready=15.0, timeout=1.0)
    waits = [pace.wait_after(Reading(failures=failures), ready=True) for failures in range(1, 8)]
    assert waits == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert pace.wait_after(Reading(), ready=False) == 2.0


def test_after_a_failed_read_the_last_figures_stand_for_a_while_with_the_fault() -> None:
    async def body() -> None:
        now = [0.0]
        with replica() as found:
            async with _reading(clock=lambda: now[0]) as reader:
                await reader.read(_address(found))
                found.status, now[0] = 503, 16.0
                await reader.read(_address(found))
                reading = reader.book.reading("pod-1")
                assert reading.figures is not None and reading.fault == "its state page answers 503"
                now[0] = 56.0
                assert reader.book.reading("pod-1").figures is None

    _run(body)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (b"<html>", "its state page isn't one"),
        ([1], "its state page isn't one"),
        ({"state": 3}, "its state page isn't one: state"),
        (b" " * (2**20 + 1), "longer than"),
    ],
)
def test_what_is_no_state_page_is_a_fault_in_words(page: Any, fault: str) -> None:
    async def body() -> None:
        with replica(page=page) as found:
            async with _reading() as reader:
                await reader.read(_address(found))
                assert fault in reader.book.reading("pod-1").fault

    _run(body)


def test_a_replica_that_is_gone_is_forgotten() -> None:
    async def body() -> None:
        with replica() as found:
            async with _reading() as reader:
                await reader.read(_address(found))
                reader.ask()
                assert reader.book.reading("pod-1").figures is None

    _run(body)


def test_nobody_listens_is_a_fault_and_no_exception() -> None:
    async def body() -> None:
        async with _reading() as reader:
            await reader.read(ReplicaAddress("pod-1", "prod", "chat", "127.99.99.99", True))
            assert reader.book.reading("pod-1").fault.startswith("not reached")

    _run(body)


def test_live_settings_are_posted_with_the_key() -> None:
    async def body() -> None:
        with replica() as found:
            async with _reading() as reader:
                await reader.book.set_policy(found.ip, KEY, {"maxQueue": 9})
        ((method, path, login, sent),) = found.asked
        assert (method, path, login) == ("POST", PATH_POLICY, f"Bearer {service_key(ROOT_KEY, 'uid-1')}")
        assert sent.replace(b" ", b"") == b'{"maxQueue":9}'

    _run(body)


def test_what_was_handed_over_stands_until_a_read_soon_after_says_otherwise() -> None:
    async def body() -> None:
        now = [0.0]
        with replica() as found:
            async with _reading(clock=lambda: now[0]) as reader:
                await reader.read(_address(found))
                await reader.book.set_policy(found.ip, KEY, {"maxSequences": 9})
                figures = reader.book.reading("pod-1").figures
                assert figures is not None and figures.policy == {"max_queue": 7, "max_sequences": 9}
                now[0] = 2.0
                await reader.read(_address(found))
                figures = reader.book.reading("pod-1").figures
                assert figures is not None and figures.policy == {"max_queue": 7}

    _run(body)


@pytest.mark.parametrize(("status", "kind"), [(400, RefusedFault), (401, TemporaryFault), (503, TemporaryFault)])
def test_live_settings_that_are_not_taken_are_a_fault(status: int, kind: type[Exception]) -> None:
    async def body() -> None:
        with replica(status=status) as found:
            async with _reading() as reader:
                with pytest.raises(kind):
                    await reader.book.set_policy(found.ip, KEY, {"maxQueue": 9})

    _run(body)


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert replica_url("10.1.2.3", "/x") == "http://10.1.2.3:8000/x"
    assert replica_url("fd00::5", "/x") == "http://[fd00::5]:8000/x"


def test_every_service_has_a_key_of_its_own() -> None:
    keys = {service_key(root, uid) for root in (b"a" * 16, b"b" * 16) for uid in ("uid-1", "uid-2")}
    assert len(keys) == 4
