"""Requests to the API server as plain JSON, over the official client's connection. Every fault becomes one of ours.

Credentials are read again when they are refused: tokens are replaced while we run.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.api_client import ApiClient

from pagefleet_contract.names import FIELD_MANAGER
from pagefleet_operator.faults import TemporaryFault, fault_of

JSON = "application/json"
# With the charset it is not what the client recognises, so that the text goes out as `yaml_text` made it.
APPLY = "application/apply-patch+yaml; charset=utf-8"
MERGE = "application/merge-patch+json"
_ONLY_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_BELOW_U10000 = re.compile("[\x7f-\uffff]")

# A list of a large cluster takes its time; nobody writes by it.
_LIST_TIMEOUT_SECONDS = 60


async def load_configuration() -> Configuration:
    """Return where the API server is and how to log in: KUBECONFIG, else the pod's service account."""
    loaded = Configuration()
    if os.environ.get("KUBECONFIG"):
        await config.load_kube_config(client_configuration=loaded)
    else:
        config.load_incluster_config(client_configuration=loaded)
    return loaded


def yaml_text(body: Mapping[str, Any]) -> str:
    """Return JSON that means the same as YAML, which has no pairs of surrogates for characters from U+10000 on, and
    takes U+0085 and U+2028 for ends of lines."""
    text = json.dumps(body, ensure_ascii=False)
    return _BELOW_U10000.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class ClusterApi:
    """One connection pool to the API server, from entering to leaving the block."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds

    async def __aenter__(self) -> Self:
        self._client = ApiClient(await load_configuration())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        *,
        accept: str = JSON,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return the answer's JSON. Raises a Fault."""
        what = f"{method} {path}"
        timeout = timeout_seconds or self._timeout
        try:
            async with asyncio.timeout(timeout):
                response = await self._send(method, path, query, body, content_type, accept)
                if response.status == 401:
                    response.release()
                    await self._log_in_again()
                    response = await self._send(method, path, query, body, content_type, accept)
                return await _answer(response, what)
        except TimeoutError as error:
            raise TemporaryFault("Timeout", f"{what}: no answer within {timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TemporaryFault("ConnectionLost", f"{what}: {str(error) or type(error).__name__}") from error

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self.request("GET", path, query)

    async def pages(
        self, path: str, query: Mapping[str, str], *, only_metadata: bool = False, size: int = 100
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield a list's items in portions, so that a large one never lies in memory as a whole."""
        asked, accept = {**query, "limit": str(size)}, _ONLY_METADATA if only_metadata else JSON
        while True:
            page = await self.request("GET", path, asked, accept=accept, timeout_seconds=_LIST_TIMEOUT_SECONDS)
            yield page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            asked["continue"] = token

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Open a watch; the lines end when the server or the connection ends it. Raises a Fault."""
        what = f"WATCH {path}"
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._send("GET", path, {**query, "watch": "true"}, None, JSON, JSON)
                if response.status == 401:
                    await self._log_in_again()
                if response.status >= 400:
                    await _answer(response, what)
        except TimeoutError as error:
            raise TemporaryFault("Timeout", f"{what}: no answer within {self._timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TemporaryFault("ConnectionLost", f"{what}: {str(error) or type(error).__name__}") from error
        try:
            yield _lines(response, what)
        finally:
            response.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        accept: str,
    ) -> aiohttp.ClientResponse:
        settings = self._client.configuration
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": FIELD_MANAGER}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = settings.host + path + (f"?{urlencode(query)}" if query else "")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout)  # callers bound the whole
        sent = yaml_text(body) if body is not None and content_type == APPLY else body
        answer = await self._client.rest_client.request(
            method, url, headers=headers, body=sent, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _log_in_again(self) -> None:
        old, self._client = self._client, ApiClient(await load_configuration())
        await old.close()


async def _answer(response: aiohttp.ClientResponse, what: str) -> dict[str, Any]:
    async with response:
        content = await response.read()
    try:
        answer = json.loads(content)
    except ValueError:
        answer = {"message": content[:200].decode("utf-8", "replace")}
    if response.status >= 400:
        raise fault_of(response.status, answer, what, response.headers.get("Retry-After"))
    return answer if isinstance(answer, dict) else {}


async def _lines(response: aiohttp.ClientResponse, what: str) -> AsyncIterator[dict[str, Any]]:
    try:
        async for line in response.content:
            event = json.loads(line)
            if event.get("type") == "ERROR":
                raise fault_of(int(event["object"].get("code") or 500), event["object"], what)
            yield event
    except (aiohttp.ClientError, OSError) as error:
        raise TemporaryFault("ConnectionLost", f"{what}: {str(error) or type(error).__name__}") from error
