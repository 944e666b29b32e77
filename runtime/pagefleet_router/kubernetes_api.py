"""Lists and watches the pods of one service. Knows the API's words; what to do about an error its caller decides."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from pagefleet_contract.names import COMPONENT_ENGINE, HEADER_RETRY_AFTER, service_selector

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
    """The pods of a service, over one client. Make another one after a fault: it reads the credentials anew."""

    def __init__(self, client: ApiClient, namespace: str, service_name: str) -> None:
        self._client = client
        labels = service_selector(service_name, COMPONENT_ENGINE)
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        self._selector = ",".join(f"{name}={value}" for name, value in labels.items())

    @classmethod
    async def connect(cls, kubeconfig: str | None, namespace: str, service_name: str) -> "PodsApi":
        """Read the credentials: of the kubeconfig, or those that the cluster gives to a pod. Raises ApiFault."""
        configuration = Configuration()
        try:
            if kubeconfig:
                await load_kube_config(kubeconfig, client_configuration=configuration, persist_config=False)
            else:
                load_incluster_config(configuration)
            return cls(ApiClient(configuration), namespace, service_name)
        except (ConfigException, OSError, ValueError) as error:
            source = f"the kubeconfig {kubeconfig}" if kubeconfig else "the pod's own service account"
            raise ApiFault(f"no access to the Kubernetes API by {source}: {error}") from error

    async def close(self) -> None:
        await self._client.close()

    async def list(self) -> Listed:
        """Return all pods. Raises ApiFault."""
        with _as_faults():
            async with asyncio.timeout(_LIST_SECONDS):
                response = await self._get({})
                page = json.loads(await response.read())
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
            async with asyncio.timeout(_WATCH_SECONDS + _WATCH_GRACE_SECONDS):
                response = await self._get(query)
                with contextlib.closing(response):
                    while line := await response.content.readline():
                        tell(_event(json.loads(line)))

    async def _get(self, query: dict[str, str]) -> aiohttp.ClientResponse:
        request = await self._client.param_serialize(
            "GET",
            self._path,
            query_params=[("labelSelector", self._selector), *query.items()],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        # The generated methods for pods would do the same and cost 25 MB.
        answer = await self._client.call_api(*request)
        response: aiohttp.ClientResponse = answer.response
        if response.status != 200:
            with contextlib.closing(response):
                raise _refused(response.status, response.headers, await response.read())
        return response


@contextlib.contextmanager
def _as_faults() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiFault("the API didn't answer in time") from error
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
        raise ApiFault(f"the API can't be used: {type(error).__name__}: {error}") from error


def _event(line: dict[str, Any]) -> Event:
    if line["type"] == "ERROR":
        status = line["object"]
        raise ApiFault(f"the watch ended: {status.get('message')}", status.get("code"))
    return Event(line["type"], line["object"])


def _refused(status: int, headers: Mapping[str, str], body: bytes) -> ApiFault:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    wait = headers.get(HEADER_RETRY_AFTER, "")
    return ApiFault(f"the API answered {status}: {message}", status, float(wait) if wait.isdecimal() else None)
