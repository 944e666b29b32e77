"""The node's way to the API server: requests with plain objects, and watches that end only when they are closed.

Plain aiohttp instead of the client library: the library's models cost 23 MB in a program of 42.
"""

import asyncio
import base64
import contextlib
import json
import logging
import random
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from pagefleet_local.node.pods import Manifest

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_JSON = "application/json"
_WATCH_SECONDS = 300
# Bookmarks come every minute: a watch that says nothing for longer is dead.
_SILENCE_SECONDS = 90
_log = logging.getLogger(__name__)


class ApiError(Exception):
    """The API server refused; `code` and `reason` are its own."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


# What can be tried again later: refusals, broken connections, silence, certificates that are being replaced.
TROUBLE = (ApiError, aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True)
class Credentials:
    server: str
    tls: ssl.SSLContext
    token: str | None
    authority: bytes


def load_credentials(kubeconfig: Path) -> Credentials:
    """Read the current context of a kubeconfig: certificates or a token, inline or in files beside it."""
    config = yaml.safe_load(kubeconfig.read_text())

    def named(kind: str, name: str) -> Manifest:
        found: dict[str, Manifest] = {each["name"]: each[kind] for each in config[f"{kind}s"]}
        return found[name]

    context = named("context", config["current-context"])
    cluster, user = named("cluster", context["cluster"]), named("user", context["user"])

    def content(section: Manifest, key: str) -> bytes | None:
        if inline := section.get(f"{key}-data"):
            return base64.b64decode(inline)
        return (kubeconfig.parent / section[key]).read_bytes() if key in section else None

    authority = content(cluster, "certificate-authority")
    if authority is None:
        raise ValueError(f"{kubeconfig} names no certificate-authority; the node doesn't talk to a server unproven")
    tls = ssl.create_default_context(cadata=authority.decode())
    certificate, key = content(user, "client-certificate"), content(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile(prefix="pagefleet-node-") as pair:  # the ssl module reads files only
            pair.write(certificate + b"\n" + key)
            pair.flush()
            tls.load_cert_chain(pair.name)
    token_file = content(user, "tokenFile")
    token = token_file.decode().strip() if token_file else user.get("token")
    return Credentials(cluster["server"], tls, token, authority)


class Api:
    """One kubeconfig's API server. Credentials are read again when the server refuses them."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self.credentials = load_credentials(kubeconfig)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        *,
        parameters: Mapping[str, str] | None = None,
        content_type: str = _JSON,
        seconds: float = 30,
    ) -> Manifest:
        """Return the server's answer; raises ApiError where it refuses."""
        patience = aiohttp.ClientTimeout(total=seconds)
        async with self._open(method, path, body, parameters, content_type, patience) as response:
            answer: Manifest = json.loads(await response.read())
            return answer

    async def lines(self, path: str, parameters: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an answer that goes on; raises TimeoutError when it has been silent for too long."""
        patience = aiohttp.ClientTimeout(total=None, connect=10, sock_read=_SILENCE_SECONDS)
        async with self._open("GET", path, None, parameters, _JSON, patience) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: Manifest | None,
        parameters: Mapping[str, str] | None,
        content_type: str,
        patience: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session, headers = self._current_session(), {"Content-Type": content_type}
        if self.credentials.token:
            headers["Authorization"] = f"Bearer {self.credentials.token}"
        data = None if body is None else json.dumps(body)
        url = self.credentials.server + path
        try:
            async with session.request(
                method, url, data=data, params=parameters, headers=headers, timeout=patience
            ) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read())
                yield response
        except ApiError as error:
            if error.code == 401:
                await self._read_credentials_again(session)
            raise
        except aiohttp.ClientSSLError:
            await self._read_credentials_again(session)
            raise

    def _current_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # No limit: every watch holds a connection.
            connector = aiohttp.TCPConnector(limit=0, ssl=self.credentials.tls)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    async def _read_credentials_again(self, refused: aiohttp.ClientSession) -> None:
        if self._session is not refused:
            return  # another request did it meanwhile
        try:
            self.credentials = load_credentials(self._kubeconfig)
        except (OSError, ValueError, LookupError, yaml.YAMLError) as error:
            # It may be in the middle of being replaced; the next refusal reads it again.
            _log.warning("the credentials in %s can't be read: %s", self._kubeconfig, error)
            return
        self._session = None
        await refused.close()


def _refusal(code: int, body: bytes) -> ApiError:
    try:
        status: dict[str, Any] = json.loads(body)
    except ValueError:
        return ApiError(code, "Unknown", body[:200].decode(errors="replace"))
    return ApiError(code, str(status.get("reason") or "Unknown"), str(status.get("message") or ""))


@dataclass(frozen=True)
class Listed:
    """All objects there are: what a watch begins with, again after it lost its place."""

    objects: list[Manifest]


@dataclass(frozen=True)
class Changed:
    object: Manifest


@dataclass(frozen=True)
class Gone:
    object: Manifest


async def watch(api: Api, path: str, parameters: Mapping[str, str]) -> AsyncGenerator[Listed | Changed | Gone, None]:
    """Yield what there is and then every change, for ever: cut, expired and refused watches are taken up again."""
    version, backoff = "", 0.1
    while True:
        try:
            if not version:
                answer = await api.request("GET", path, parameters=parameters)
                version = answer["metadata"]["resourceVersion"]
                yield Listed([_trimmed(each) for each in answer.get("items") or ()])
            async with aclosing(_events(api, path, {**parameters, "resourceVersion": version})) as events:
                async for event in events:
                    backoff = 0.1
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        yield Gone(_trimmed(event["object"]))
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        yield Changed(_trimmed(event["object"]))
        except TROUBLE as error:
            if isinstance(error, ApiError) and error.code == 410:
                version = ""
                continue
            if isinstance(error, ApiError) and error.code in (403, 404):
                version = ""  # what was allowed before may be another object's place now
            _log.info("watch of %s is taken up again in %.1f s: %s", path, backoff, str(error) or type(error).__name__)
            await asyncio.sleep(backoff * random.uniform(0.8, 1.2))
            backoff = min(backoff * 2, 10)


async def _events(api: Api, path: str, parameters: Mapping[str, str]) -> AsyncGenerator[Manifest, None]:
    seconds = str(int(_WATCH_SECONDS * random.uniform(1, 2)))
    asked = {**parameters, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": seconds}
    async with aclosing(api.lines(path, asked)) as lines:
        async for line in lines:
            event: Manifest = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise ApiError(int(status.get("code") or 500), str(status.get("reason")), str(status.get("message")))
            yield event


def _trimmed(thing: Manifest) -> Manifest:
    thing["metadata"].pop("managedFields", None)
    return thing
