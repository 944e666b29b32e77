"""What is known about a model before any pod runs: from the list of well-known models, or from the hub. It is looked up
in the background and kept; a reconcile never waits for the network."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from pagefleet_contract.inferenceservice import ModelSpec
from pagefleet_contract.known_models import find_known_model
from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.model_config import UnknownShape, dtype_of, max_length_of, shape_of, widths_of
from pagefleet_operator.observed import ModelFacts

_HUB = "hf://"
_TIMEOUT_SECONDS = 5.0
_MAX_FILE_BYTES = 8 * 2**20
_KEEP_FAULT_SECONDS = 300.0
_MAX_KEPT = 1000


class Pending:
    """The look-up is under way; the key is called when it has ended."""


@dataclass(frozen=True, slots=True)
class _Source:
    repository: str
    revision: str


@dataclass(slots=True)
class _Lookup:
    facts: ModelFacts | None = None
    looked_up_at: float = 0.0
    waiting: set[ServiceKey] = field(default_factory=set)


class ModelFactsBook:
    """Owns what was looked up, by repository and revision. `hub_url` is empty to look nothing up."""

    def __init__(
        self, hub_url: str, on_known: Callable[[ServiceKey], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hub_url = hub_url.rstrip("/")
        self._on_known = on_known
        self._clock = clock
        self._lookups: dict[_Source, _Lookup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = httpx2.AsyncClient(timeout=httpx2.Timeout(_TIMEOUT_SECONDS), follow_redirects=True)

    def facts(self, model: ModelSpec, key: ServiceKey) -> ModelFacts | Pending:
        """Return what is known, or that the key is called when it is."""
        known = find_known_model(model.uri)
        if known is not None:
            source = "the list of well-known models"
            return ModelFacts(
                known.shape, known.weights_bytes, known.max_length, source, dtype=known.dtype, widths=known.widths
            )
        if not model.uri.startswith(_HUB):
            scheme = model.uri.partition("://")[0]
            return ModelFacts(fault=f"the size of a {scheme}:// model is known once a replica has loaded it")
        if not self._hub_url:
            return ModelFacts(fault="no hub is asked (hubUrl is empty), and the model isn't a well-known one")
        return self._looked_up(_Source(model.uri.removeprefix(_HUB), model.revision or "main"), key)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def _looked_up(self, source: _Source, key: ServiceKey) -> ModelFacts | Pending:
        lookup = self._lookups.get(source)
        if lookup is None:
            self._drop_oldest()
            lookup = self._lookups[source] = _Lookup()
            self._start(source, lookup)
        if lookup.facts is None:
            lookup.waiting.add(key)
            return Pending()
        # A fault is shown until a later look finds better.
        if lookup.facts.fault and self._clock() - lookup.looked_up_at > _KEEP_FAULT_SECONDS:
            lookup.looked_up_at = self._clock()
            lookup.waiting.add(key)
            self._start(source, lookup)
        return lookup.facts

    def _start(self, source: _Source, lookup: _Lookup) -> None:
        task = asyncio.create_task(self._look_up(source, lookup), name=f"look up {source.repository}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(self, source: _Source, lookup: _Lookup) -> None:
        found = await self._ask_hub(source)
        changed = found != lookup.facts
        lookup.facts, lookup.looked_up_at = found, self._clock()
        waiting, lookup.waiting = lookup.waiting, set()
        if changed:
            for key in waiting:
                self._on_known(key)

    async def _ask_hub(self, source: _Source) -> ModelFacts:
        where = f"{self._hub_url}/{source.repository}/resolve/{source.revision}"
        try:
            async with asyncio.timeout(2 * _TIMEOUT_SECONDS):
                config = await self._json(f"{where}/config.json")
                shape = shape_of(config)
                weights = await self._weights(where)
        except (UnknownShape, _NotFound) as error:
            return ModelFacts(fault=str(error))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, TimeoutError) as error:
            return ModelFacts(fault=f"the hub {self._hub_url} wasn't reached: {str(error) or type(error).__name__}")
        return ModelFacts(
            shape,
            weights,
            max_length_of(config),
            f"config.json of {source.repository}",
            dtype=dtype_of(config),
            widths=widths_of(config),
        )

    async def _weights(self, where: str) -> int | None:
        """Return the bytes of the weights: what the index of the parts says, else the size of the only file."""
        try:
            index = await self._json(f"{where}/model.safetensors.index.json")
        except _NotFound:
            head = await self._client.head(f"{where}/model.safetensors")
            size = head.headers.get("x-linked-size") or head.headers.get("content-length")
            return int(size) if head.status_code == 200 and size and size.isdecimal() else None
        total = (index.get("metadata") or {}).get("total_size")
        return int(total) if isinstance(total, int | float) else None

    async def _json(self, url: str) -> Mapping[str, Any]:
        async with self._client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise _NotFound(f"the hub answers {answer.status_code} for {url}{_hint(answer.status_code)}")
            content = b""
            async for chunk in answer.aiter_bytes():
                content += chunk
                if len(content) > _MAX_FILE_BYTES:
                    raise _NotFound(f"{url} is longer than {_MAX_FILE_BYTES} bytes")
        try:
            document = json.loads(content)
        except ValueError as error:
            raise _NotFound(f"{url} is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise _NotFound(f"{url} holds {type(document).__name__}, not an object")
        return document

    def _drop_oldest(self) -> None:
        if len(self._lookups) >= _MAX_KEPT:
            del self._lookups[next(iter(self._lookups))]


class _NotFound(Exception):
    """A file of the model isn't to be had."""


def _hint(status: int) -> str:
    if status in (401, 403):
        return "; the operator asks without a login, the replicas use theirs"
    if status == 404:
        return "; check model.uri and model.revision"
    return ""
