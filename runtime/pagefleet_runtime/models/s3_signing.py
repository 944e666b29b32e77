"""Signatures of AWS, version 4, for requests without a body. Pure: the time is a parameter."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str
    session_token: str | None = None


def encoded_path(path: str) -> str:
    """Return a path as S3 wants it in URL and signature: encoded once but for slashes."""
    return quote(path, safe="/-_.~")


def encoded_query(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))


def signed_headers(
    host: str, path: str, query: Mapping[str, str], credentials: Credentials, region: str, now: datetime
) -> dict[str, str]:
    """Return the headers that let a GET of `path` (not encoded) pass. Other headers of the request stay unsigned."""
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY_BODY, "x-amz-date": stamp}
    if credentials.session_token is not None:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(headers)
    canonical = "\n".join(
        (
            "GET",
            encoded_path(path),
            encoded_query(query),
            *(f"{name}:{value}" for name, value in headers.items()),
            "",
            names,
            _EMPTY_BODY,
        )
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    signed = f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": signed}
