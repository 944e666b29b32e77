"""What went away while a watch had lost its place is found by a list of our own."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pagefleet_operator.cache import Cache, ServiceKey
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.handlers import Watches
from pagefleet_operator.kinds import INFERENCE_SERVICE, watched
from pagefleet_operator.truth import Truth

HERE, THERE = "prod", "test"
RESYNC_SECONDS = 600.0


class Lists(ClusterApi):
    """An API server that holds these services, and counts the whole lists that it is asked for."""

    def __init__(self, *services: dict[str, Any]) -> None:
        super().__init__(1)
        self.services = list(services)
        self.num_lists = 0

    def _items(self, path: str) -> list[dict[str, Any]]:
        return [one for one in self.services if path == INFERENCE_SERVICE.path(one["metadata"]["namespace"])]

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert query is not None and query["limit"] == "1"
        return {"items": self._items(path)[:1]}

    async def pages(
        self, path: str, query: Mapping[str, str], *, only_metadata: bool = False, size: int = 100
    ) -> AsyncIterator[list[dict[str, Any]]]:
        self.num_lists += 1
        yield self._items(path)


def _service(name: str, namespace: str = HERE) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}}


class Bench:
    """A comparison whose watches have told of everything, and whose clock stands still."""

    def __init__(self, *services: dict[str, Any]) -> None:
        self.api = Lists(*services)
        self.queued: list[ServiceKey] = []
        cache = Cache()
        self.watches = Watches(cache, self.queued.append, lambda key: None)
        for one in services:
            self.watches.take(INFERENCE_SERVICE, None, one)
        self.watches.was_listed_again = False
        self.queued.clear()
        self.truth = Truth(self.api, cache, self.watches, (HERE, THERE), RESYNC_SECONDS, clock=lambda: 0.0)

    def look(self) -> None:
        asyncio.run(self.truth.look())


def test_objects_that_went_with_the_last_of_their_kind_are_found_without_a_word_of_a_watch() -> None:
    """A new list that is empty calls no handler: nothing says that there was one."""
    bench = Bench(_service("chat"), _service("stays", THERE))
    bench.api.services.pop(0)
    bench.look()
    assert bench.queued == [ServiceKey(HERE, "chat", "prod-chat")]


def test_an_empty_namespace_of_which_nothing_is_known_is_no_reason_to_list_all() -> None:
    bench = Bench(_service("stays", THERE))
    bench.look()
    assert (bench.queued, bench.api.num_lists) == ([], 0)


def test_a_list_that_was_read_again_is_compared_at_once_and_once() -> None:
    bench = Bench(_service("chat"), _service("goes"))
    bench.api.services.pop()
    bench.watches.take(INFERENCE_SERVICE, None, _service("chat"))
    bench.look()
    assert bench.queued == [ServiceKey(HERE, "goes", "prod-goes")]
    bench.look()
    assert bench.api.num_lists == 2 * len(watched(cluster_wide=False))
