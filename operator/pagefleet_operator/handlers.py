"""What kopf tells us: every event of our kind and of its children goes into the cache and queues its service's key.

Only `on.event`: no finalizers, no annotations, no state of handlers. The cache is our own and not a kopf index, because
an index keeps what was deleted while a watch was cut; `truth` finds such objects.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import kopf

from pagefleet_contract.names import FIELD_MANAGER, GROUP, LABEL_MANAGED_BY, MANAGED_BY_VALUE
from pagefleet_operator.cache import Cache, ServiceKey
from pagefleet_operator.cluster_api import load_configuration
from pagefleet_operator.kinds import INFERENCE_SERVICE, ResourceKind, watched

logger = logging.getLogger(__name__)

SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY_VALUE}"

_CHUNK_SIZE = 100
_LOOK_SECONDS = 1.0
_WATCH_TASK = "watcher for "  # kopf's name for them; a test ends one and sees the operator end
_LONGEST_EXIT_SECONDS = 20.0


@dataclass(slots=True)
class Watches:
    """Takes events. Owns when the last one came, and whether a list was read again since it was last asked."""

    cache: Cache
    add: Callable[[ServiceKey], None]
    forget: Callable[[ServiceKey], None]
    last_event_at: float = field(default_factory=time.monotonic)
    was_listed_again: bool = False

    def take(self, kind: ResourceKind, event_type: str | None, manifest: Mapping[str, Any]) -> None:
        """`event_type` is None for what a list holds, as kopf has it."""
        self.last_event_at = time.monotonic()
        uid = manifest["metadata"]["uid"]
        if event_type == "DELETED":
            self.lose(uid)
            return
        if event_type is None:
            self.was_listed_again = True
        if self.cache.put(kind, manifest):
            key = self.cache.owner_of(uid)
            if key is not None:
                self.add(key)

    def lose(self, uid: str) -> None:
        """The object is gone: what it belonged to is looked at, and a service's key is dropped."""
        key = self.cache.owner_of(uid)
        self.cache.drop(uid)
        if key is None:
            return
        if key.uid == uid:
            self.forget(key)
        self.add(key)


def registry_of(watches: Watches, kinds: Iterable[ResourceKind]) -> kopf.OperatorRegistry:
    """Return the handlers, and how kopf logs in: as everything else here does, with tokens that are read anew."""
    registry = kopf.OperatorRegistry()
    for kind in kinds:
        _watch(registry, kind, watches)

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info()

    return registry


def _watch(registry: kopf.OperatorRegistry, kind: ResourceKind, watches: Watches) -> None:
    @kopf.on.event(
        group=kind.group, version=kind.version, plural=kind.plural, id=f"take-{kind.plural}", registry=registry
    )
    async def take(event: Mapping[str, Any], **_: Any) -> None:
        watches.take(kind, event["type"], event["object"])


async def connection_info() -> kopf.ConnectionInfo:
    settings = await load_configuration()
    header = await settings.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert or None,
        insecure=not settings.verify_ssl,
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=settings.cert_file or None,
        private_key_path=settings.key_file or None,
    )


def kopf_settings(kinds: Iterable[ResourceKind]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    # Nothing is found by scanning: it would need rights on namespaces and CRDs.
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    # A refused list ends the operator after these, instead of leaving it deaf for a minute. The first list of a new
    # CRD is refused for some seconds.
    settings.networking.error_backoffs = (0.5, 1, 1, 2, 3)
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.watching.server_timeout = 600
    settings.watching.chunk_size = _CHUNK_SIZE
    # One task and queue per object lives that long after its last event.
    settings.queueing.idle_timeout = 0.2
    settings.process.ultimate_exiting_timeout = _LONGEST_EXIT_SECONDS
    settings.persistence.finalizer = f"{GROUP}/{FIELD_MANAGER}"  # never set; named in case a handler ever asks for one
    for kind in kinds:
        if selector := selector_of(kind):
            settings.watching.label_selectors[_is_kind(kind)] = selector
    return settings


def selector_of(kind: ResourceKind) -> str:
    """Return the labels by which the server picks what is watched; empty for all objects of the kind."""
    return "" if kind == INFERENCE_SERVICE else SELECTOR


def _is_kind(kind: ResourceKind) -> Callable[[Any], bool]:
    return lambda resource: bool(resource.group == kind.group and resource.plural == kind.plural)


async def run_kopf(watches: Watches, namespaces: tuple[str, ...] | None) -> None:
    """Watch until cancelled, or until a watch can't go on. `namespaces` is None for all of them."""
    kinds = watched(cluster_wide=namespaces is None)
    await kopf.operator(
        registry=registry_of(watches, kinds),
        settings=kopf_settings(kinds),
        standalone=True,
        clusterwide=namespaces is None,
        namespaces=namespaces or (),
    )


async def see_that_watches_run(filled: asyncio.Event) -> None:
    """Look after kopf's watches until one of them has ended. kopf itself can wait for the others for ever then.

    All of them run at the moment that `filled` is set; one may end before the next look.
    """
    most = 0
    while True:
        if filled.is_set():
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            await asyncio.wait({waiting := asyncio.ensure_future(filled.wait())}, timeout=_LOOK_SECONDS)
            waiting.cancel()
        running = sum(task.get_name().startswith(_WATCH_TASK) for task in asyncio.all_tasks())
        if running < most:
            return
        if running > most:
            logger.info("%d watches run", running)
        most = running
