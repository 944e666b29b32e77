"""The little of S3 that serving needs: what lies below a prefix, and an object's bytes from an offset on."""

import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from urllib.parse import urlsplit

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.s3_signing import Credentials, encoded_path, encoded_query, signed_headers

_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 2**20
# What a server answers where trying again helps.
_TEMPORARY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
# Before the second try, the third, and so on.
_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class S3Object:
    key: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class S3Access:
    """Where the bucket is asked, and as whom; nobody where there are no credentials."""

    region: str
    endpoint: str | None
    credentials: Credentials | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "S3Access":
        """Return what the variables say that AWS' own programs read."""

        def value(*names: str) -> str | None:
            return next((environment[name] for name in names if environment.get(name)), None)

        access_key, secret_key = value("AWS_ACCESS_KEY_ID"), value("AWS_SECRET_ACCESS_KEY")
        if (access_key is None) != (secret_key is None):
            raise ModelRefused("one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set both, or neither")
        credentials = None
        if access_key is not None and secret_key is not None:
            credentials = Credentials(access_key, secret_key, value("AWS_SESSION_TOKEN"))
        endpoint = value("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise ModelRefused(f"AWS_ENDPOINT_URL is {endpoint!r}; it must begin with http:// or https://")
        return cls(value("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1", endpoint, credentials)


class S3Failure(Exception):
    """The server's answer, or that there was none, after all tries."""

    def __init__(self, message: str, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Bucket:
    """One bucket, read only. Safe to use from several threads."""

    def __init__(self, name: str, access: S3Access, sleep: Callable[[float], None] = time.sleep) -> None:
        self._access = access
        self._sleep = sleep
        # A signature is for one host: it isn't sent to where an answer points.
        self._opener = urllib.request.build_opener(_NoRedirects)
        if access.endpoint is not None:
            parts = urlsplit(access.endpoint)
            self._base, self._root = f"{parts.scheme}://{parts.netloc}", f"{parts.path.rstrip('/')}/{name}"
        elif "." in name:  # the certificate doesn't fit a name with more dots
            self._base, self._root = f"https://s3.{access.region}.amazonaws.com", f"/{name}"
        else:
            self._base, self._root = f"https://{name}.s3.{access.region}.amazonaws.com", ""

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """Yield what lies below the prefix, in order. Raises S3Failure."""
        query = {"list-type": "2", "prefix": prefix}
        while True:
            with self._get("/", query, {}) as response:
                page = ElementTree.fromstring(response.read())
            for entry in _children(page, "Contents"):
                yield S3Object(_text(entry, "Key"), int(_text(entry, "Size")), _text(entry, "ETag"))
            if _text(page, "IsTruncated") != "true":
                return
            query = {**query, "continuation-token": _text(page, "NextContinuationToken")}

    def read(self, wanted: S3Object, offset: int) -> Iterator[bytes]:
        """Yield the object's bytes from `offset` on. Raises S3Failure, also where the object isn't the same any more.

        A connection that breaks is taken up where it ended.
        """
        fruitless = 0
        while offset < wanted.size_bytes:
            before, reason = offset, "the answer ended"
            headers = {"range": f"bytes={offset}-", "if-match": wanted.etag}
            try:
                with self._get(f"/{wanted.key}", {}, headers) as response:
                    if response.status != HTTPStatus.PARTIAL_CONTENT:
                        raise S3Failure(f"{response.status} for a part of {wanted.key}; the server must support ranges")
                    while chunk := response.read(_CHUNK_BYTES):
                        offset += len(chunk)
                        yield chunk
            except (OSError, HTTPException) as error:
                reason = str(error)
            if offset > before:
                fruitless = 0
                continue
            if fruitless == len(_PAUSES_SECONDS):
                raise S3Failure(f"{wanted.key} broke off at byte {offset} of {wanted.size_bytes}: {reason}")
            self._sleep(_PAUSES_SECONDS[fruitless])
            fruitless += 1

    def _get(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> HTTPResponse:
        for pause in (*_PAUSES_SECONDS, None):
            try:
                return self._get_once(path, query, headers)
            except S3Failure as failure:
                if pause is None or (failure.status is not None and failure.status not in _TEMPORARY_STATUSES):
                    raise
                self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _get_once(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> HTTPResponse:
        whole = self._root + path
        url = f"{self._base}{encoded_path(whole)}" + (f"?{encoded_query(query)}" if query else "")
        signed: dict[str, str] = {}
        access = self._access
        if access.credentials is not None:
            host = urlsplit(self._base).netloc
            signed = signed_headers(host, whole, query, access.credentials, access.region, datetime.now(UTC))
        request = urllib.request.Request(url, headers={**signed, **headers})
        try:
            response: HTTPResponse = self._opener.open(request, timeout=_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                raise _failure(error) from error
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise S3Failure(f"{self._base} can't be reached: {reason}") from error
        return response


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *unused: object) -> None:
        return None  # the answer is an error, then


def _failure(error: urllib.error.HTTPError) -> S3Failure:
    """Read the answer's own code and message, where it has any."""
    code = message = ""
    try:
        answer = ElementTree.fromstring(error.read(64 * 1024))
        code, message = _text(answer, "Code"), _text(answer, "Message")
    except ElementTree.ParseError:
        message = error.reason
    region = error.headers.get("x-amz-bucket-region")
    hint = f"; the bucket's region is {region}: set AWS_REGION" if region and error.code in (301, 307, 400) else ""
    return S3Failure(f"{error.code} {code}: {message}{hint}".replace("  ", " "), error.code, code)


def _children(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return the children of that name; other makers of S3 leave the namespace out."""
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _text(element: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in _children(element, name)), "")
