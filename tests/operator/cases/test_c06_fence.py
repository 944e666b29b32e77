"""C06: whoever doesn't hold the Lease for certain writes nothing, whatever was planned before."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pagefleet_contract.names import API_VERSION, KIND
from pagefleet_operator.actions import Action, AnnotatePod, Announcement, Apply, Delete, SetPolicy
from pagefleet_operator.apply import Applier
from pagefleet_operator.cache import Cache, ServiceKey
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.events import Announcer
from pagefleet_operator.faults import AbsentFault, NotLeading
from pagefleet_operator.figures import FiguresBook, FiguresPace
from pagefleet_operator.kinds import INFERENCE_SERVICE
from pagefleet_operator.leadership import Fence

KEY = ServiceKey("prod", "chat", "uid-1")
LIVE = {"metadata": {"name": "chat", "namespace": "prod", "uid": "uid-1", "resourceVersion": "1"}, "spec": {}}
OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "chat", "uid": "uid-1", "controller": True}
CHILD = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-live", "ownerReferences": [OWNER]}}
ACTIONS: list[Action] = [
    Apply(CHILD, "it lacks"),
    Delete("v1", "ConfigMap", "chat-old", "uid-2", "it is of no use"),
    AnnotatePod("chat-a", "uid-3", {"a": "b"}, "it costs"),
    SetPolicy("chat-a", "127.0.0.1", {"maxQueue": 1}, "it is live"),
]


class _Server(ClusterApi):
    """Has none of the children, and takes every write."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    async def request(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        if method == "GET":
            raise AbsentFault("NotFound", path)
        self.writes.append(f"{method} {path.rpartition('/')[2]}")
        metadata = {"name": "chat-live", "namespace": "prod", "uid": "uid-4", "resourceVersion": "2"}
        return {"metadata": metadata, "spec": {"containers": []}}


Write = Callable[[Applier, Announcer], Coroutine[Any, Any, Any]]


def _carry_out(action: Action) -> Write:
    return lambda applier, _: applier.carry_out(KEY, (action,), {})


WRITES: dict[str, Write] = {
    **{type(action).__name__: _carry_out(action) for action in ACTIONS},
    "status": lambda applier, _: applier.write_status(KEY, LIVE, {"ready": "1/1"}),
    "event": lambda _, announcer: announcer.announce(KEY, Announcement("Normal", "Rolled", "it has rolled")),
}


def _written(write: Write, now_seconds: float) -> list[str]:
    """Return what reaches the server at that time of an operator that may write until second 10."""

    async def run() -> list[str]:
        cache, server, fence = Cache(), _Server(), Fence(lambda: now_seconds)
        fence.open_until(10.0)
        cache.put(INFERENCE_SERVICE, LIVE)
        book = FiguresBook(FiguresPace(ready=15.0, timeout=1.0), b"0123456789abcdef", lambda done: None)
        try:
            await write(Applier(server, cache, fence, book, lambda kind, result: None), Announcer(server, fence))
        except NotLeading:
            server.writes.append("refused")
        finally:
            await book.close()
        return server.writes

    return asyncio.run(run())


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_c06_nothing_is_written_from_the_moment_on_at_which_another_may_lead(write: Write) -> None:
    assert _written(write, 10.0) == ["refused"]


@pytest.mark.parametrize("what", sorted({*WRITES} - {"SetPolicy"}))
def test_c06_until_then_it_is_written(what: str) -> None:
    (written,) = _written(WRITES[what], 9.9)
    assert written != "refused"
