"""Lists and watches the pods of one service. Knows the API's words; what to do about an error its caller decides.

The requests go over the router's own connections: the general client would more than double the router's memory.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from pagefleet_contract.names import COMPONENT_ENGINE, HEADER_RETRY_AFTER, service_selector
from pagefleet_router.credentials import Access
from pagefleet_router.headers import Headers, authority_of, header
from pagefleet_router.upstream import Answer, Lost, Unreachable, Upstream

_CONNECT_SECONDS = 10.0
_LIST_SECONDS = 15.0
# How long one watch lasts. A watch that has silently died is noticed after this time and a little.
_WATCH_SECONDS = 30
_WATCH_GRACE_SECONDS = 5.0


class ApiFault(Exception):
    """The API can't be used now; the message says why. Trying again is right."""

    def __init__(self, message: str, status: int | None = None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_gone(self) -> bool:
        """Whether the place in the history that was asked for is no longer kept: list again."""
        return self.status == 410


@dataclass(frozen=True, slots=True)
class Listed:
    pods: list[dict[str, Any]]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Event:
    kind: str  # ADDED, MODIFIED, DELETED or BOOKMARK
    pod: dict[str, Any]

    @property
    def resource_version(self) -> str:
        return str(self.pod["metadata"]["resourceVersion"])


class PodsApi:
    """The pods of a service, for one access. Make another one after a fault: credentials may have changed."""

    def __init__(self, access: Access, namespace: str, service_name: str) -> None:
        self._access = access
        self._upstream = Upstream(_CONNECT_SECONDS, access.tls, access.server_name)
        labels = service_selector(service_name, COMPONENT_ENGINE)
        self._path = f"{access.prefix}/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        self._selector = ",".join(f"{name}={value}" for name, value in labels.items())

    async def close(self) -> None:
        self._upstream.close()

    async def list(self) -> Listed:
        """Return all pods. Raises ApiFault."""
        with _as_faults():
            async with asyncio.timeout(_LIST_SECONDS), self._get({}) as answer:
                page = json.loads(await _whole(answer))
        return Listed(page["items"], page["metadata"]["resourceVersion"])

    async def watch(self, resource_version: str, tell: Callable[[Event], None]) -> None:
        """Tell what happens after that version; return when the watch comes to its end. Raises ApiFault.

        A watch that outlasts its time has silently died: that is a fault too.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "1",
            "timeoutSeconds": str(_WATCH_SECONDS),
            "resourceVersion": resource_version,
        }
        with _as_faults():
            async with asyncio.timeout(_WATCH_SECONDS + _WATCH_GRACE_SECONDS), self._get(query) as answer:
                rest = b""
                while data := await answer.read():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        tell(_event(json.loads(line)))

    @contextlib.asynccontextmanager
    async def _get(self, query: Mapping[str, str]) -> AsyncIterator[Answer]:
        """Send a GET and give its answer, of status 200. Raises ApiFault for any other."""
        access = self._access
        target = f"{self._path}?{urlencode({'labelSelector': self._selector, **query})}"
        headers = [
            (b"host", authority_of(access.host, access.port)),
            (b"accept", b"application/json"),
            (b"user-agent", b"pagefleet-router"),
        ]
        if access.token is not None:
            headers.append((b"authorization", f"Bearer {access.token}".encode()))
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        request = f"GET {target} HTTP/1.1\r\n".encode() + lines + b"\r\n"
        answer = await self._upstream.send((access.host, access.port), request, b"", has_no_body=False)
        with contextlib.closing(answer):
            if answer.head.status != 200:
                raise _refused(answer.head.status, answer.head.headers, await _whole(answer))
            yield answer


async def _whole(answer: Answer) -> bytes:
    pieces = []
    while data := await answer.read():
        pieces.append(data)
    return b"".join(pieces)


@contextlib.contextmanager
def _as_faults() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiFault("the Kubernetes API didn't answer in time") from error
    except Unreachable as error:
        raise ApiFault(f"the Kubernetes API can't be reached: {error}") from error
    except Lost as error:
        raise ApiFault(f"the connection to the Kubernetes API ended: {error}") from error
    except (ValueError, KeyError) as error:
        raise ApiFault(f"the Kubernetes API answered what can't be read: {type(error).__name__}: {error}") from error


def _event(line: dict[str, Any]) -> Event:
    if line["type"] == "ERROR":
        status = line["object"]
        raise ApiFault(f"the watch ended: {status.get('message')}", status.get("code"))
    return Event(line["type"], line["object"])


def _refused(status: int, headers: Headers, body: bytes) -> ApiFault:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    wait = (header(headers, HEADER_RETRY_AFTER.encode()) or b"").decode("latin-1")
    fault = f"the Kubernetes API answered {status}: {message}"
    return ApiFault(fault, status, float(wait) if wait.isdecimal() else None)
