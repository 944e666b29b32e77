"""The ConfigMaps and Secrets that the node's pods name: each watched by itself, since a node may read no others."""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from pagefleet_local.node.api import Api, Changed, Gone, Listed, watch
from pagefleet_local.node.pods import Manifest
from pagefleet_local.node.volumes import Reference

_log = logging.getLogger(__name__)


@dataclass
class _Watched:
    holders: dict[str, Callable[[], None]] = field(default_factory=dict)
    known: asyncio.Event = field(default_factory=asyncio.Event)
    object: Manifest | None = None
    task: asyncio.Task[None] | None = None


class ReferencedObjects:
    """Keeps each object that some pod holds up to date, and wakes its holders on a change."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._watched: dict[tuple[str, Reference], _Watched] = {}

    def hold(self, holder: str, namespace: str, references: set[Reference], wake: Callable[[], None]) -> None:
        """Watch the objects until the holder lets them go; `wake` is called on each change."""
        for reference in references:
            watched = self._watched.setdefault((namespace, reference), _Watched())
            watched.holders[holder] = wake
            if watched.task is None:
                watched.task = asyncio.create_task(self._follow(namespace, reference, watched))

    def let_go(self, holder: str) -> None:
        for key, watched in list(self._watched.items()):
            watched.holders.pop(holder, None)
            if not watched.holders:
                del self._watched[key]
                if watched.task:
                    watched.task.cancel()

    async def known(self, namespace: str, references: set[Reference]) -> None:
        """Wait until it is known of each whether it exists."""
        for reference in references:
            await self._watched[namespace, reference].known.wait()

    def data(self, namespace: str, kind: str, references: set[Reference]) -> dict[str, Mapping[str, bytes]]:
        """Return the contents of those of the kind that exist, by name."""
        return {
            reference.name: object_data(found)
            for reference in references
            if reference.kind == kind and (found := self._watched[namespace, reference].object) is not None
        }

    async def _follow(self, namespace: str, reference: Reference, watched: _Watched) -> None:
        path = f"/api/v1/namespaces/{namespace}/{reference.kind}"
        async with aclosing(watch(self._api, path, {"fieldSelector": f"metadata.name={reference.name}"})) as events:
            async for event in events:
                match event:
                    case Listed(objects):
                        watched.object = objects[0] if objects else None
                    case Changed(changed):
                        watched.object = changed
                    case Gone():
                        watched.object = None
                watched.known.set()
                for wake in list(watched.holders.values()):
                    wake()
                if watched.object and watched.object.get("immutable"):
                    return  # it can't change, and what runs keeps it


def object_data(found: Manifest) -> dict[str, bytes]:
    """Return the contents of a ConfigMap or a Secret as bytes."""
    if found.get("kind") == "Secret" or "type" in found:
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
