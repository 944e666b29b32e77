"""A real API server as the proxy of faults calls it: with the caller's token, or with a kubeconfig's certificate."""

import asyncio
import base64
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"})

_CONNECT_SECONDS = 10


class ApiServer:
    """The API server behind the proxy, and the client certificate that the proxy's kubeconfig holds."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        named = {each["name"]: each["context"] for each in content["contexts"]}[content["current-context"]]
        cluster = {each["name"]: each["cluster"] for each in content["clusters"]}[named["cluster"]]
        user = {each["name"]: each["user"] for each in content["users"]}[named["user"]]
        self._server = str(cluster["server"]).rstrip("/")
        self._without_certificate = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
        self._with_certificate = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(_pem(user, "client-certificate") + _pem(user, "client-key"))
            file.flush()
            self._with_certificate.load_cert_chain(file.name)
        self._sending: set[asyncio.Future[aiohttp.ClientResponse]] = set()

    async def __aenter__(self) -> "ApiServer":
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        # Another session for requests with a token: the API server would believe the certificate first.
        self._sessions = {
            has_token: aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, limit=0),
                timeout=timeout,
                auto_decompress=False,
            )
            for has_token, context in ((True, self._without_certificate), (False, self._with_certificate))
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=_CONNECT_SECONDS)
        for session in self._sessions.values():
            assert session.connector is not None
            await session.connector.close(abort_ssl=True)
            await session.close()

    @contextlib.asynccontextmanager
    async def send(self, incoming: web.Request, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Pass a request on. Its connection is broken off where the answer isn't read to the end.

        A caller that is cancelled leaves the sending to itself. Cancelled too, aiohttp would close the connection in
        order, which waits for the API server, and forget it: nobody could close it before the loop does.
        """
        headers = [(name, value) for name, value in incoming.headers.items() if name.lower() not in HOP_BY_HOP]
        session = self._sessions["Authorization" in incoming.headers]
        url = URL(self._server + incoming.raw_path, encoded=True)
        sending = asyncio.ensure_future(
            session.request(incoming.method, url, headers=headers, data=body or None, allow_redirects=False)
        )
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        try:
            answer = await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(_break_off_what_came)
            raise
        with _breaking_off(answer):
            yield answer


def _break_off_what_came(sending: asyncio.Future[aiohttp.ClientResponse]) -> None:
    if not sending.cancelled() and sending.exception() is None:
        with _breaking_off(sending.result()):
            pass


@contextlib.contextmanager
def _breaking_off(answer: aiohttp.ClientResponse) -> Iterator[None]:
    """At the end close at once, unless the answer came to its end and has given its connection back."""
    transport = None if answer.connection is None else answer.connection.transport  # a cancelled read forgets it
    try:
        yield
    finally:
        if transport is not None and not answer.content.is_eof():
            transport.abort()
        answer.close()


def _pem(section: dict[str, Any], name: str) -> str:
    """Return what a kubeconfig holds under NAME-data, or in the file NAME."""
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"]).decode()
    return Path(section[name]).read_text()
