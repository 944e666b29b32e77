"""Headers of a request on its way to a replica, and of the answer on its way back. Pure."""

import re
import uuid
from collections.abc import Iterable

from pagefleet_contract.names import HEADER_REQUEST_ID

Headers = list[tuple[bytes, bytes]]

# They belong to one connection (RFC 9110, 7.6.1); and those that the router writes itself.
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"http2-settings", b"proxy-authorization"}

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")
_REQUEST_ID = HEADER_REQUEST_ID.encode()
_FORWARDED_FOR = b"x-forwarded-for"
_FORWARDED_HOST = b"x-forwarded-host"
_FORWARDED_PROTO = b"x-forwarded-proto"


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of the first header of that (lower-case) name."""
    return next((value for found, value in headers if found == name), None)


def request_id_of(headers: Headers) -> bytes:
    """Return the id that the client gave, if it is short and safe to print, or a new one."""
    given = header(headers, _REQUEST_ID)
    return given if given is not None and _SAFE_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}".encode()


def to_replica(headers: Headers, request_id: bytes, client: str, authority: bytes, body_length: int) -> Headers:
    """Return what is sent to the replica at `authority`. Names are in lower case, as uvicorn gives them."""
    dropped = _NOT_FORWARDED | _named_by_connection(headers)
    passed = [(name, value) for name, value in headers if name not in dropped and name != _REQUEST_ID]
    hops = [value for name, value in passed if name == _FORWARDED_FOR]
    passed = [pair for pair in passed if pair[0] != _FORWARDED_FOR]
    passed.append((_FORWARDED_FOR, b", ".join([*hops, client.encode()])))
    if header(passed, _FORWARDED_PROTO) is None:
        passed.append((_FORWARDED_PROTO, b"http"))
    host = header(headers, b"host")
    if host is not None and header(passed, _FORWARDED_HOST) is None:
        passed.append((_FORWARDED_HOST, host))
    passed.append((_REQUEST_ID, request_id))
    if body_length or header(headers, b"content-length") or header(headers, b"transfer-encoding"):
        passed.append((b"content-length", str(body_length).encode()))
    return [(b"host", authority), *passed]


def to_client(headers: Headers, request_id: bytes) -> Headers:
    """Return what the client gets of a replica's headers."""
    dropped = _HOP_BY_HOP | _named_by_connection(headers)
    passed = [(name, value) for name, value in headers if name not in dropped]
    if header(passed, _REQUEST_ID) is None:
        passed.append((_REQUEST_ID, request_id))
    return passed


def authority_of(address: str, port: int) -> bytes:
    """Return an address and a port as URLs and Host headers write them."""
    return (f"[{address}]:{port}" if ":" in address else f"{address}:{port}").encode()


def _named_by_connection(headers: Headers) -> set[bytes]:
    values = (value for name, value in headers if name == b"connection")
    return {token.strip().lower() for value in values for token in value.split(b",")} - {b"close", b""}
