"""moto's S3 server as a process of its own, and a proxy before it that cuts answers short."""

import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

# How many objects a listing has on a page; 1,000 in earnest.
PAGE_KEYS = 4

# Enough for a server that doesn't look at signatures yet.
_SOMEBODY = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/{}/aws4_request"


@dataclass(frozen=True)
class S3Server:
    url: str

    def make_bucket(self, name: str, objects: Mapping[str, bytes], public: bool = False) -> None:
        headers = {"authorization": _SOMEBODY.format("s3"), **({"x-amz-acl": "public-read"} if public else {})}
        with httpx2.Client(base_url=self.url, headers=headers, timeout=60) as http:
            http.put(f"/{name}").raise_for_status()
            for key, content in objects.items():
                http.put(f"/{name}/{key}", content=content).raise_for_status()

    def make_user(self) -> tuple[str, str]:
        """Return access key and secret of a user who may do everything."""
        policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
        self._iam(Action="CreateUser", UserName="anna")
        self._iam(Action="PutUserPolicy", UserName="anna", PolicyName="all", PolicyDocument=policy)
        answer = self._iam(Action="CreateAccessKey", UserName="anna")
        found = re.search(r"<AccessKeyId>(.*?)</.*<SecretAccessKey>(.*?)</", answer, re.DOTALL)
        assert found is not None, answer
        return found[1], found[2]

    def ask_for_signatures(self) -> None:
        """From now on each request must be signed by somebody who may send it."""
        httpx2.post(f"{self.url}/moto-api/reset-auth", content=b"0").raise_for_status()

    def _iam(self, **fields: str) -> str:
        headers = {"authorization": _SOMEBODY.format("iam")}
        return httpx2.post(f"{self.url}/", data=fields, headers=headers).raise_for_status().text


@contextmanager
def s3_server() -> Iterator[S3Server]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_KEYS)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stderr is not None
            seen = ""
            for line in process.stderr:
                seen += line
                if found := re.search(r"Running on (http://\S+)", line):
                    break
            else:
                raise AssertionError(f"moto's server didn't start:\n{seen}")
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield S3Server(found[1])
        finally:
            process.terminate()


@dataclass
class CuttingProxy:
    """Passes connections on to the server; of each answer listed in `cuts` only so many bytes, or fewer where it
    `resets` the connection then."""

    target: str
    cuts: list[int | None] = field(default_factory=list)
    resets: bool = False
    num_connections: int = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the test is over
            index, self.num_connections = self.num_connections, self.num_connections + 1
            most = self.cuts[index] if index < len(self.cuts) else None
            threading.Thread(target=self._serve, args=(client, most), daemon=True).start()

    def _serve(self, client: socket.socket, most: int | None) -> None:
        target = urlsplit(self.target)
        with client, socket.create_connection((target.hostname or "", target.port or 0)) as server:
            server.sendall(client.recv(2**16))
            while most is None or most > 0:
                chunk = server.recv(2**16 if most is None else min(most, 2**16))
                if not chunk:
                    return
                client.sendall(chunk)
                most = None if most is None else most - len(chunk)
            if self.resets:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
