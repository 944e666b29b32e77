"""A real API server as the proxy of faults calls it: with the caller's token, or with a kubeconfig's certificate."""

import base64
import ssl
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"})


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

    async def __aenter__(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, connect=10)
        # Another session for requests with a token: the API server would believe the certificate first.
        self._sessions = {
            has_token: aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, limit=0),
                timeout=timeout,
                auto_decompress=False,
            )
            for has_token, context in ((True, self._without_certificate), (False, self._with_certificate))
        }

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            assert session.connector is not None
            await session.connector.close(abort_ssl=True)
            await session.close()

    def send(self, incoming: web.Request, body: bytes) -> "aiohttp.client._RequestContextManager":
        headers = [(name, value) for name, value in incoming.headers.items() if name.lower() not in HOP_BY_HOP]
        session = self._sessions["Authorization" in incoming.headers]
        url = URL(self._server + incoming.raw_path, encoded=True)
        return session.request(incoming.method, url, headers=headers, data=body or None, allow_redirects=False)


def _pem(section: dict[str, Any], name: str) -> str:
    """Return what a kubeconfig holds under NAME-data, or in the file NAME."""
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"]).decode()
    return Path(section[name]).read_text()
